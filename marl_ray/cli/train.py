"""`marl-ray train ALGORITHM`, also used by `train_magrpo` and `train_grpo`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from marl_ray.cli.config_flags import EXAMPLES, add_config_flags, algorithm, read_config
from marl_ray.cli.parser import Parser, add_verbosity, configure_logging, exit_code_of


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        prog="marl-ray train",
        description="Train the agents of a YAML config.",
        epilog=EXAMPLES.format(prog="marl-ray train magrpo", section="magrpo"),
    )
    parser.add_argument("algorithm", type=algorithm, help="magrpo, or grpo for a single agent")
    return _main(parser, argv)


def train_main(name: str, argv: Sequence[str] | None = None) -> int:
    """Run `python -m marl_ray.train_magrpo` or `train_grpo` and return the exit code."""
    prog = f"python -m marl_ray.train_{name}"
    parser = Parser(
        prog=prog,
        description=f"Train the agents of a YAML config with {name}.",
        epilog=EXAMPLES.format(prog=prog, section=name),
    )
    parser.set_defaults(algorithm=name)
    return _main(parser, argv)


def _main(parser: Parser, argv: Sequence[str] | None) -> int:
    add_config_flags(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config and exit")
    add_verbosity(parser)
    options = parser.parse_args(argv)
    return exit_code_of(lambda: _train(options))


def _train(options: argparse.Namespace) -> None:

    configure_logging(options)
    config, saved = read_config(options.algorithm, options)
    if options.dry_run:
        from marl_ray.cli.plan import print_dry_run

        print_dry_run(config, saved)
    else:
        from marl_ray.launch.run import train

        train(config, saved)
