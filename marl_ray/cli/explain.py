"""`marl-ray explain KEY`."""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.cli.config_flags import ALGORITHMS, algorithm
from marl_ray.cli.parser import Parser, exit_code_of


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit code."""
    parser = Parser(
        prog="marl-ray explain",
        description="What a setting means, its type and its default; of a section, its settings; else sections.",
        epilog="examples:\n  marl-ray explain magrpo.num_turns\n  marl-ray explain sandbox",
    )
    parser.add_argument("key", metavar="KEY", nargs="?", default="", help="section.key, or a section")
    parser.add_argument(
        "--algorithm",
        type=algorithm,
        metavar="NAME",
        help="whose settings and defaults: magrpo or grpo; if not given, the section's in KEY, else magrpo",
    )
    options = parser.parse_args(argv)
    section = options.key.partition(".")[0]
    name = options.algorithm or (section if section in ALGORITHMS else ALGORITHMS[0])
    return exit_code_of(lambda: _explain(options.key, name))


def _explain(key: str, name: str) -> None:
    from marl_ray.config.descriptions import explain

    for line in explain(key, name):
        print(line)
