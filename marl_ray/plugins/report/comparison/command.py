"""`marl-ray compare`: paired differences between runs, with a table and a figure for a paper."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.eval import numbers
from marl_ray.cli.parser import Parser, add_run_flags, configure_logging, positive

EPILOG = """examples:
  marl-ray compare runs/base-1 runs/base-2 runs/new-1 runs/new-2 --output comparisons/new
  marl-ray compare runs/base-1 runs/new-1 --split 'test[:64]' --samples 5 --k 1,5 --output comparisons/new
  marl-ray compare evaluations/base evaluations/new --output comparisons/new

Runs whose configs differ only in the seed are one method. Differences are from the first method.
See docs/how-to/compare.md."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray compare",
        description="Evaluate runs on the same tasks and compare them: means and paired differences with intervals\n"
        "over tasks and seeds, as a table (Markdown, LaTeX) and a figure (PDF, SVG), with the commands that made them.",
        epilog=EPILOG,
    )
    parser.add_argument("paths", nargs="+", metavar="RUN", help="runs or checkpoints, or folders of marl-ray eval")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new or empty folder")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file; default: the config of the first run")
    parser.add_argument("--split", metavar="SPLIT", help="default: the evaluation tasks of the config")
    parser.add_argument("--samples", type=positive, metavar="N", help="episodes per task; default: the largest k")
    parser.add_argument("--k", type=numbers, default=[1], metavar="K,...", help="k of pass@k; default: 1")
    add_run_flags(parser)
    return parser.run(lambda options: _compare(options, argv), argv)


def _compare(options: argparse.Namespace, argv: Sequence[str]) -> None:
    from marl_ray.config import parse_overrides
    from marl_ray.evaluation.evaluate import evaluation_config
    from marl_ray.plugins.report.comparison.compare_runs import ComparisonRequest, needs_evaluation, run_comparison

    configure_logging(options)
    paths = [Path(path) for path in options.paths]
    overrides = parse_overrides(options.override)
    config = None
    if needs_evaluation(paths):
        config = evaluation_config(options.paths, options.config, overrides=overrides)
    samples = options.samples or max(options.k)
    command = ["marl-ray", "compare", *argv]
    request = ComparisonRequest(paths, options.split, samples, options.k, options.output, command)
    for line in run_comparison(config, request):
        print(line)
