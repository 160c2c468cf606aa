"""`marl-ray scale RUN_DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser, exit_code_of

SLACK_S = 120.0
"""For the run to see the request, and for weights to arrive."""


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit code."""
    parser = Parser(
        prog="marl-ray scale",
        description="Give an agent more or fewer generators while its run goes on, here or elsewhere: the run folder\n"
        "is all that this command and the run share. Returns when all of them serve. A resumed run starts with the\n"
        "number of its config again: resources.generator.replicas, or that of agents.N.generator.",
        epilog="example:\n  marl-ray scale runs/one --agent 1 --replicas 3",
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the run's folder")
    parser.add_argument("--agent", type=int, required=True, metavar="N", help="which, from 0")
    parser.add_argument("--replicas", type=int, required=True, metavar="N", help="how many generators it is to have")
    options = parser.parse_args(argv)
    return exit_code_of(lambda: _scale(options.run_dir, options.agent, options.replicas))


def _scale(run_dir: Path, agent: int, replicas: int) -> None:
    from marl_ray.storage.resume import SavedRun
    from marl_ray.storage.scale_requests import checked, request_scaling

    saved = SavedRun.read(run_dir)
    config, folder = saved.config(), saved.folder
    request, deadlines = checked(agent, replicas, config.num_agents), config.resources.deadlines
    deadline_s = deadlines.placement_s + deadlines.start_s + SLACK_S
    print(request_scaling(folder.requests, folder.lock, request, deadline_s))
