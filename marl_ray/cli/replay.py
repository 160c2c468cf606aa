"""`marl-ray replay RUN_DIR`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from marl_ray.cli.parser import Parser, exit_code_of
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize

if TYPE_CHECKING:
    from marl_ray.launch.replay import ReplayedStep

Steps = tuple[int | None, int | None]


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit code."""
    parser = Parser(
        prog="marl-ray replay",
        description="Learn again from a run's checkpoints and batch log, without Ray, engines and sandbox, and print\n"
        "each step's numbers beside those of metrics.jsonl. Fails if they differ by more than rounding; what\n"
        "was not recorded cannot differ.",
        epilog="examples:\n  marl-ray replay runs/one\n  marl-ray replay runs/one --agent 1 --steps 40:60\n\n"
        "Steps 40:60 are those that led from step 40 to step 60. The log has what the last checkpoint does not cover,\n"
        "and all of a run with output.keep_batches: true.",
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the run's folder")
    parser.add_argument("--agent", type=int, metavar="N", help="one agent's policy, agents from 0; if not given, all")
    parser.add_argument(
        "--steps",
        type=steps,
        default=(None, None),
        metavar="FROM:TO",
        help="if not given, as many as the log allows, or up to its end",
    )
    options = parser.parse_args(argv)
    return exit_code_of(lambda: _replay(options.run_dir, options.agent, options.steps))


def steps(text: str) -> Steps:
    """`40:60`, `40:` or `:60` as an argument's type."""
    found = re.fullmatch(r"(\d*):(\d*)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form FROM:TO, as in 40:60")
    first, last = (int(number) if number else None for number in found.groups())
    return first, last


def _replay(run_dir: Path, agent: int | None, steps: Steps) -> None:
    from marl_ray.launch.replay import ROUNDING, ReplayRange, replay
    from marl_ray.storage.resume import SavedRun

    saved = SavedRun.read(run_dir)
    folder, config = saved.folder, saved.config()
    if agent is not None and agent not in range(config.num_agents):
        raise UserError(f"{folder} has agents 0 to {config.num_agents - 1}: --agent {agent} is none of them")
    way = ReplayRange.through(folder, *steps)
    largest = 0.0
    for policy in config.policies if agent is None else [config.policy_of(agent)]:
        print(
            f"{policy.introduction}, from "
            + (f"checkpoint {way.checkpoint.name}" if way.checkpoint else "its base model")
        )
        print(_header())
        shown = []
        for step in replay(folder, saved, policy, way):
            print(_line(step), flush=True)
            shown.append(step)
        worst = max(step.difference for step in shown)
        print(f"{policy}: {_verdict(shown, worst)}")
        largest = max(largest, worst)
    if largest > ROUNDING:
        raise UserError(
            f"{folder} was not learned like this: the numbers differ by {largest:.1e}, which is more than rounding "
            f"({ROUNDING:.0e}): another machine's kind, version of the package, or config"
        )


def _verdict(shown: Sequence[ReplayedStep], worst: float) -> str:
    """On one policy's steps, which differ by `worst` at most."""
    recorded = sum(step.recorded is not None for step in shown)
    if not recorded:
        return f"learned from {pluralize(len(shown), 'step')} again; nothing was recorded to compare with"
    what = f"they differ by {worst:.1e} at most" if worst else "they agree to the bit"
    return f"{recorded} of {pluralize(len(shown), 'step')} were recorded; {what}"


def _header() -> str:
    from marl_ray.launch.replay import COMPARED

    return f"{'step':>6}" + "".join(f" | {name:>13} {'recorded':>13}" for name in COMPARED)


def _line(step: ReplayedStep) -> str:
    recorded = step.recorded or {}
    pairs = ((step.found[name], recorded.get(name)) for name in step.found)
    return f"{step.step:>6}" + "".join(f" | {_number(found)} {_number(known)}" for found, known in pairs)


def _number(number: float | None) -> str:
    return f"{'-':>13}" if number is None else f"{number:>13.6e}"
