"""`marl-ray report RUN_DIR ...`: write the page of a run, or a list of runs with a page of each."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from marl_ray.cli.parser import Parser
from marl_ray.core.errors import UserError

if TYPE_CHECKING:
    from marl_ray.storage.run_folder import RunFolder

EPILOG = """examples:
  marl-ray report runs/one
  marl-ray report runs
  marl-ray report runs/one runs/two --output two.html
  marl-ray report runs/one --serve
  marl-ray report runs/one --trace trace.json

docs/how-to/report.md describes the page."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray report",
        description="Write one self-contained HTML page about a run: curves, episodes, warnings, config and machine.\n"
        "The run may be starting or in progress. Of several runs, or a folder of runs, write a list that compares\n"
        "them, and the page of each. Also prints the mean rewards at each evaluation and at the last step, and\n"
        "updates the plot of each run.",
        epilog=EPILOG,
    )
    parser.add_argument("run_dir", type=Path, nargs="+", metavar="RUN_DIR", help="run folder, or a folder of runs")
    output_help = "default: report.html in the folder; required for several folders"
    parser.add_argument("--output", type=Path, metavar="FILE", help=output_help)
    episodes_help = "0: a page without episodes; default: as many as fit into the page"
    parser.add_argument("--episodes", type=int, metavar="N", help=episodes_help)
    trace_help = "write the run's timeline to FILE instead of a page, for https://ui.perfetto.dev"
    parser.add_argument("--trace", type=Path, metavar="FILE", help=trace_help)
    serve_help = "serve the pages on this machine and follow the runs, instead of writing files"
    parser.add_argument("--serve", action="store_true", help=serve_help)
    parser.add_argument("--port", type=int, default=8010, metavar="N", help="with --serve; 0: any; default: 8010")
    return parser.run(_report, argv)


def _report(options: argparse.Namespace) -> None:
    from marl_ray.core.files import expand_home
    from marl_ray.plugins.report.chrome_trace import trace_of
    from marl_ray.storage.run_folder import RunFolder

    if options.episodes is not None and options.episodes < 0:
        raise UserError("--episodes should be at least 0")
    given = [RunFolder(path) for path in options.run_dir]
    folders: list[RunFolder] = []
    for folder in given:
        folders += _runs_in(folder) or [folder]
    if options.trace is not None:
        if len(folders) > 1:
            raise UserError("--trace is for one run")
        _write(expand_home(options.trace).absolute(), trace_of(folders[0]), "--trace")
        return
    if options.serve:
        from marl_ray.plugins.report.live_report import serve_report

        serve_report(folders, options.port, lambda address: print(address, flush=True))
        return
    is_list = folders != given or len(folders) > 1
    if len(given) > 1 and options.output is None:
        raise UserError("a list of several runs needs --output FILE")
    file = given[0].report if options.output is None else expand_home(options.output).absolute()
    if is_list:
        _write_list(folders, file, options.episodes)
    else:
        _write_run(folders[0], file, options.episodes)


def _runs_in(folder: RunFolder) -> list[RunFolder]:
    """Return the runs in a folder of runs, the newest first; nothing for a run."""
    from marl_ray.storage.run_folder import RunFolder

    if folder.config.exists() or folder.metrics.exists() or not folder.path.is_dir():
        return []
    runs = []
    for path in folder.path.iterdir():
        inner = RunFolder(path)
        if inner.config.exists():
            runs.append(inner)
    return sorted(runs, key=lambda run: run.config.stat().st_mtime, reverse=True)


def _write_run(folder: RunFolder, file: Path, episodes: int | None) -> None:
    """Write the page of a run, print its rewards and update its plot."""
    from marl_ray.plugins.report.run_data import EPISODE_BYTES, read_metric_rows, run_data
    from marl_ray.plugins.report.run_page import render_run_data
    from marl_ray.results.returns_plot import plot_run

    data = run_data(folder, 0 if episodes == 0 else EPISODE_BYTES)
    rows = read_metric_rows(folder)
    for line in (*data["reward_table"].splitlines(), *data["cooperation"]):
        print(line)
    if rows:
        plot_run(rows, folder.plot, folder.path.name)
        print(folder.plot)
    _write(file, render_run_data(data), "--output")


def _write_list(folders: Sequence[RunFolder], file: Path, episodes: int | None) -> None:
    """Write the page of each run into its folder, and the list that links to them."""
    from marl_ray.plugins.report.run_list import list_data, read_listed_run
    from marl_ray.plugins.report.run_page import render_list

    runs = []
    for folder in folders:
        # The list and the pages can move together: links are relative.
        link = Path(os.path.relpath(folder.report, file.parent)).as_posix()
        run = read_listed_run(folder, link)
        runs.append(run)
        if run.entry["problem"] is None:
            print(folder.path.name)
            _write_run(folder, folder.report, episodes)
        else:
            print(f"{folder.path.name}: {run.entry['problem']}")
    _write(file, render_list(list_data(runs)), "--output")


def _write(file: Path, text: str, flag: str) -> None:
    from marl_ray.core.files import write_atomically

    try:
        write_atomically(file, text.encode())
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}): give another {flag}") from None
    print(file)
