"""`marl-ray plan ALGORITHM`: all that can be said and checked without a download and without starting anything."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from marl_ray.cli.parser import Parser, guarded
from marl_ray.cli.settings import EXAMPLES, add_settings, algorithm, read

if TYPE_CHECKING:
    from marl_ray.config import Config
    from marl_ray.runs.resume import SavedRun


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit code."""
    parser = Parser(
        prog="marl-ray plan",
        description="Check a config and start nothing. The resolved config goes to standard output; its arithmetic,\n"
        "and what it asks of a cluster, to standard error.",
        epilog=EXAMPLES.format(prog="marl-ray plan magrpo", section="magrpo"),
    )
    parser.add_argument("algorithm", type=algorithm, help="magrpo, or grpo for a single agent")
    add_settings(parser)
    options = parser.parse_args(argv)
    return guarded(lambda: show(*read(options.algorithm, options)))


def show(config: Config, saved: SavedRun | None) -> None:
    """Check and print. Raises UserError."""
    from marl_ray.cluster.plan import demands
    from marl_ray.config import to_yaml
    from marl_ray.config.arithmetic import describe
    from marl_ray.runs.check import check
    from marl_ray.runs.resume import RunIsDone

    try:
        problem = check(config, saved, dry=True)
    except RunIsDone as done:
        if config.output.resume == "never":
            raise
        sys.stderr.write(f"{done}\n")
        return
    facts = [describe(config, len(problem.train_tasks) or None), *problem.prompt_notes, demands(config)]
    sys.stdout.write(to_yaml(config))
    sys.stderr.write("\n".join(facts) + "\n")
