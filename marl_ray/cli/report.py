"""`marl-ray report RUN_DIR ...`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser, exit_code_of
from marl_ray.core.errors import UserError

EPILOG = """examples:
  marl-ray report runs/one
  marl-ray report runs/one runs/two --output two.html
  marl-ray report runs/one --episodes 50

docs/how-to/report.md says what is on the page."""


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit code."""
    parser = Parser(
        prog="marl-ray report",
        description="Write a page of a run, which may still go on: one HTML file with curves, episodes, warnings,\n"
        "config and machine, that loads nothing. Several runs are compared. Prints the mean rewards at each\n"
        "evaluation and at the last step, and draws the plot of each run again.",
        epilog=EPILOG,
    )
    parser.add_argument("run_dir", type=Path, nargs="+", metavar="RUN_DIR", help="the run's folder; several compare")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="if not given, report.html in the run's folder; needed for several"
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=10,
        metavar="N",
        help="of the best, worst and last each; 10 if not given",
    )
    options = parser.parse_args(argv)
    return exit_code_of(lambda: _report(options))


def _report(options: argparse.Namespace) -> None:
    from marl_ray.core.files import expand_home, write_atomically
    from marl_ray.reports.html_report import render_report
    from marl_ray.reports.returns_plot import plot_run
    from marl_ray.reports.run_data import load_run_data
    from marl_ray.reports.run_summary import read_metrics, reward_table
    from marl_ray.storage.run_folder import RunFolder

    folders = [RunFolder(path) for path in options.run_dir]
    if options.episodes < 0:
        raise UserError("--episodes counts from 0")
    if len(folders) > 1 and options.output is None:
        raise UserError("a page of several runs needs a place: give --output FILE")
    for folder in folders:
        rows = read_metrics(folder)
        if len(folders) > 1:
            print(folder.path.name)
        for line in reward_table(rows):
            print(line)
        plot_run(rows, folder.plot, folder.path.name)
        print(folder.plot)
    file = folders[0].report if options.output is None else expand_home(options.output).absolute()
    text = render_report([load_run_data(folder.path, options.episodes) for folder in folders])
    try:
        write_atomically(file, text.encode())
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}): give another --output") from None
    print(file)
