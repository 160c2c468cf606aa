"""`marl-ray report RUN_DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser, guarded


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit code."""
    parser = Parser(
        prog="marl-ray report",
        description="Mean rewards at each evaluation and at the last step of a run, which may still go on; draws its\n"
        "plot again.",
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the run's folder")
    options = parser.parse_args(argv)
    return guarded(lambda: _report(options.run_dir))


def _report(run_dir: Path) -> None:
    from marl_ray.reports.plots import plot_returns
    from marl_ray.reports.summary import rows_of, table
    from marl_ray.runs.folder import RunFolder

    folder = RunFolder(run_dir)
    rows = rows_of(folder)
    for line in table(rows):
        print(line)
    plot_returns(rows, folder.plot, folder.path.name)
    print(folder.plot)
