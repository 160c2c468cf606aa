"""`marl-ray replay RUN_DIR`: repeat the updates of a run and compare them with the recorded metrics."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from marl_ray.cli.parser import Parser
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize

if TYPE_CHECKING:
    from marl_ray.launch.replay import ReplayedStep


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray replay",
        description="Repeat the updates of a run from its checkpoints and batch log, without Ray, engines or sandbox,\n"
        "and print the metrics of each step next to those in metrics.jsonl. Fails if they differ by more than\n"
        "rounding. Steps without recorded metrics are not compared.",
        epilog="examples:\n  marl-ray replay runs/one\n  marl-ray replay runs/one --agent 1 --steps 40:60\n\n"
        "Steps 40:60 lead from step 40 to step 60. The log has the batches since the last checkpoint, or all batches of"
        "\na run with output.keep_batches: true.",
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="run folder")
    agent_help = "replay only the policy of this agent, counted from 0; default: all policies"
    parser.add_argument("--agent", type=int, metavar="N", help=agent_help)
    steps_help = "default: all steps in the log"
    parser.add_argument("--steps", type=steps, default=(None, None), metavar="FROM:TO", help=steps_help)
    return parser.run(_replay, argv)


def steps(text: str) -> tuple[int | None, int | None]:
    """Convert an argument such as `40:60`, `40:` or `:60` to a range of steps."""
    match = re.fullmatch(r"(\d*):(\d*)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form FROM:TO, as in 40:60")
    first, last = match.groups()
    return _step(first), _step(last)


def _step(digits: str) -> int | None:
    return int(digits) if digits else None


def _replay(options: argparse.Namespace) -> None:
    from marl_ray.launch.replay import COMPARED, ROUNDING, ReplayRange, replay
    from marl_ray.storage.resume import SavedRun

    saved = SavedRun.read(options.run_dir)
    folder = saved.folder
    config = saved.config()
    agent = options.agent
    if agent is not None and agent not in range(config.num_agents):
        raise UserError(f"{folder} has agents 0 to {config.num_agents - 1}: --agent {agent} does not exist")
    replay_range = ReplayRange.find(folder, *options.steps)
    start = "its base model"
    if replay_range.checkpoint:
        start = f"checkpoint {replay_range.checkpoint.name}"
    header = f"{'step':>6}"
    for name in COMPARED:
        header += f" | {name:>13} {'recorded':>13}"
    # Each policy is replayed alone: its learner reads no weights of the others.
    policies = config.policies if agent is None else [config.policy_of(agent)]
    largest = 0.0
    for policy in policies:
        print(f"{policy.introduction}, from {start}")
        print(header)
        steps_of_policy = []
        for step in replay(folder, saved, policy, replay_range):
            print(_line(step), flush=True)
            steps_of_policy.append(step)
        worst = max(step.difference for step in steps_of_policy)
        print(f"{policy}: {_verdict(steps_of_policy, worst)}")
        largest = max(largest, worst)
    if largest > ROUNDING:
        raise UserError(
            f"{folder} cannot be reproduced: metrics differ by {largest:.1e}, more than rounding ({ROUNDING:.0e}). The "
            "run used another kind of machine, version of the package, or config"
        )


def _verdict(steps: Sequence[ReplayedStep], worst: float) -> str:
    """Return the summary of one policy, whose metrics differ by at most `worst`."""
    recorded = sum(step.recorded is not None for step in steps)
    if not recorded:
        return f"{pluralize(len(steps), 'step')} replayed; no recorded metrics to compare with"
    difference = "metrics are bit-identical"
    if worst:
        difference = f"metrics differ by at most {worst:.1e}"
    return f"{recorded} of {pluralize(len(steps), 'step')} have recorded metrics; {difference}"


def _line(step: ReplayedStep) -> str:
    row = step.recorded or {}
    line = f"{step.step:>6}"
    for name, number in step.replayed.items():
        line += f" | {_cell(number)} {_cell(row.get(name))}"
    return line


def _cell(number: float | None) -> str:
    return f"{'-':>13}" if number is None else f"{number:>13.6e}"
