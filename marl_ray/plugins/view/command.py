"""`marl-ray view RUN_DIR`: browse the recorded episodes of a run in a terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser
from marl_ray.core.errors import UserError

EPILOG = """examples:
  marl-ray view runs/one
  marl-ray view runs/one --filter 'held-out unsolved step=10..'

Keys: j and k move, n and p show the same task at a later or earlier step, / filters, o sorts, f unfolds the
prompts, d hides the comparison with the turn before, space and b scroll, q ends.
docs/how-to/view.md has the words of the filter."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray view",
        description="Browse the recorded episodes of a run in a terminal: on the left a table, on the right the turns\n"
        "of one episode. The run may be on a cluster's login node and still in progress; new episodes appear.",
        epilog=EPILOG,
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="run folder")
    parser.add_argument("--filter", default="", metavar="WORDS", help="the filter to begin with")
    return parser.run(_view, argv)


def has_terminal() -> bool:
    """Return whether a person can read and write."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _view(options: argparse.Namespace) -> None:
    from marl_ray.plugins.view.episode_filter import EpisodeFilter
    from marl_ray.plugins.view.episode_index import EpisodeIndex
    from marl_ray.storage.run_folder import RunFolder

    folder = RunFolder(options.run_dir)
    folder.require(folder.config)
    EpisodeFilter.parse(options.filter)
    index = EpisodeIndex(folder.episodes)
    index.read_new()
    if not index.episodes and not folder.lock.exists():
        key = "output.episodes_per_step"
        raise UserError(f"{folder} has no recorded episodes: set {key} to 1 or more for the next run")
    from marl_ray.plugins.view.app import EpisodeBrowser

    if not has_terminal():
        raise UserError(f"view needs a terminal: marl-ray report {folder} writes a page")
    EpisodeBrowser(folder.path.name, index, options.filter).run()
