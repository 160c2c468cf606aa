"""`marl-ray report RUN_DIR ...`: write an HTML report of one or several runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser
from marl_ray.core.errors import UserError

EPILOG = """examples:
  marl-ray report runs/one
  marl-ray report runs/one runs/two --output two.html
  marl-ray report runs/one --episodes 50
  marl-ray report runs/one --serve
  marl-ray report runs/one --trace trace.json

docs/how-to/report.md describes the page."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray report",
        description="Write one self-contained HTML page about a run: curves, episodes, warnings, config and machine.\n"
        "The run may still be in progress. Several runs are compared. Also prints the mean rewards at each\n"
        "evaluation and at the last step, and updates the plot of each run.",
        epilog=EPILOG,
    )
    parser.add_argument("run_dir", type=Path, nargs="+", metavar="RUN_DIR", help="run folder; several are compared")
    output_help = "default: report.html in the run folder; required for several runs"
    parser.add_argument("--output", type=Path, metavar="FILE", help=output_help)
    episodes_help = "number of best, worst and last episodes each; default: 10"
    parser.add_argument("--episodes", type=int, default=10, metavar="N", help=episodes_help)
    trace_help = "write the run's timeline to FILE instead of a page, for https://ui.perfetto.dev"
    parser.add_argument("--trace", type=Path, metavar="FILE", help=trace_help)
    serve_help = "serve the page on this machine and follow the run, instead of writing a file"
    parser.add_argument("--serve", action="store_true", help=serve_help)
    parser.add_argument("--port", type=int, default=8010, metavar="N", help="with --serve; 0: any; default: 8010")
    return parser.run(_report, argv)


def _report(options: argparse.Namespace) -> None:
    from marl_ray.cooperation.run_sentences import cooperation_summary
    from marl_ray.core.files import expand_home
    from marl_ray.plugins.report.chrome_trace import trace_of
    from marl_ray.plugins.report.html_report import render_report
    from marl_ray.results.returns_plot import plot_run
    from marl_ray.results.run_summary import read_metrics, reward_table
    from marl_ray.storage.run_folder import RunFolder

    folders = [RunFolder(path) for path in options.run_dir]
    if options.episodes < 0:
        raise UserError("--episodes should be at least 0")
    if options.trace is not None:
        if len(folders) > 1:
            raise UserError("--trace is for one run")
        _write(expand_home(options.trace).absolute(), trace_of(folders[0]), "--trace")
        return
    if options.serve:
        from marl_ray.plugins.report.live_report import serve_report

        serve_report(folders, options.episodes, options.port, lambda address: print(address, flush=True))
        return
    if len(folders) > 1 and options.output is None:
        raise UserError("a page of several runs needs --output FILE")
    for folder in folders:
        rows = read_metrics(folder)
        if len(folders) > 1:
            print(folder.path.name)
        for line in (*reward_table(rows), *cooperation_summary(rows)):
            print(line)
        plot_run(rows, folder.plot, folder.path.name)
        print(folder.plot)
    file = folders[0].report if options.output is None else expand_home(options.output).absolute()
    _write(file, render_report(folders, options.episodes), "--output")


def _write(file: Path, text: str, flag: str) -> None:
    from marl_ray.core.files import write_atomically

    try:
        write_atomically(file, text.encode())
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}): give another {flag}") from None
    print(file)
