"""`marl-ray scale RUN_DIR`: change the number of generators of a running run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser

SLACK_S = 120.0  # time in seconds for the run to read the request and to send weights to new generators


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray scale",
        description="Change the number of generators of an agent while the run is in progress, on this machine or\n"
        "another one that shares the run folder. Returns when all generators serve. A resumed run starts with the\n"
        "number in its config: resources.generator.replicas, or the same key of agents.N.",
        epilog="example:\n  marl-ray scale runs/one --agent 1 --replicas 3",
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="run folder")
    parser.add_argument("--agent", type=int, required=True, metavar="N", help="number of the agent, from 0")
    parser.add_argument("--replicas", type=int, required=True, metavar="N", help="new number of generators")
    return parser.run(_scale, argv)


def _scale(options: argparse.Namespace) -> None:
    from marl_ray.storage.resume import SavedRun
    from marl_ray.storage.scale_requests import request_scaling, validate_request

    saved = SavedRun.read(options.run_dir)
    config = saved.config()
    folder = saved.folder
    request = validate_request(options.agent, options.replicas, config.num_agents)
    deadlines = config.resources.deadlines
    deadline_s = deadlines.placement_s + deadlines.start_s + SLACK_S
    print(request_scaling(folder.requests, folder.lock, request, deadline_s))
