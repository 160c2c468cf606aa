"""`marl-ray train ALGORITHM`, and the modules train_magrpo and train_grpo."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence

from marl_ray.cli.config_flags import EXAMPLES, add_settings, algorithm, read
from marl_ray.cli.parser import Parser, add_quiet, exit_code_of


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit code."""
    parser = Parser(
        prog="marl-ray train",
        description="Train the agents of a YAML config.",
        epilog=EXAMPLES.format(prog="marl-ray train magrpo", section="magrpo"),
    )
    parser.add_argument("algorithm", type=algorithm, help="magrpo, or grpo for a single agent")
    return _main(parser, argv)


def train_main(name: str, argv: Sequence[str] | None = None) -> int:
    """`python -m marl_ray.train_magrpo` and `train_grpo`. Returns the exit code."""
    prog = f"python -m marl_ray.train_{name}"
    parser = Parser(
        prog=prog,
        description=f"Train the agents of a YAML config with {name}.",
        epilog=EXAMPLES.format(prog=prog, section=name),
    )
    parser.set_defaults(algorithm=name)
    return _main(parser, argv)


def _main(parser: Parser, argv: Sequence[str] | None) -> int:
    add_settings(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config and start nothing")
    add_quiet(parser)
    options = parser.parse_args(argv)
    return exit_code_of(lambda: _train(options))


def _train(options: argparse.Namespace) -> None:

    from marl_ray.telemetry import logs

    logs.configure(logging.WARNING if options.quiet else logging.INFO)
    config, saved = read(options.algorithm, options)
    if options.dry_run:
        from marl_ray.cli.plan import show

        show(config, saved)
    else:
        from marl_ray.launch.run import train

        train(config, saved)
