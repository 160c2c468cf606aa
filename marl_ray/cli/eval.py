"""`marl-ray eval`: estimate pass@k, returns and levels of models on a split, with confidence intervals."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser, add_run_flags, configure_logging, overrides_of, positive
from marl_ray.cli.request_flags import add_request_flags, request_of
from marl_ray.evaluation.requests import EvaluationRequest

EPILOG = """examples:
  marl-ray eval --model runs/one
  marl-ray eval --config configs/mt_magrpo_he_config.yaml --model base --samples 20 --k 1,5,10
  marl-ray eval --config configs/quickstart.yaml --model base --model runs/one --samples 5 --k 1,5
  marl-ray eval --model runs/one --model runs/one/checkpoints/step_000024 --split 'test[:32]'
  marl-ray eval --config configs/quickstart.yaml --model base --model runs/one --swap
  marl-ray eval --model runs/one --protocol single --override magrpo.eval_temperature=0

protocols:
  parallel    all agents answer at the same time, as in training
  single      the last agent alone, with the prompts of a single agent
  sequential  agents answer one after another; each reads the earlier answers
  discussion  all agents answer, read the other answers, and answer again

docs/how-to/evaluate.md describes the estimates."""

FLAGS = {
    "output.base_dir": "--output",
    "output.run_name": "--output",
    "output.episodes_per_step": "--episodes",
    "output.measure_cooperation": "--cooperation",
}
"""Flags in the place of settings of a training."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray eval",
        description="Run models on a split, like the evaluations of a training run, and estimate pass@k, mean return\n"
        "and levels per turn, with confidence intervals. Several models are compared task by task.",
        epilog=EPILOG,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file; default: the config of the first run")
    model_help = (
        "base (the config's models), bundled:NAME, or a folder of a model, run or checkpoint; repeat to compare"
    )
    parser.add_argument("--model", action="append", required=True, metavar="MODEL", help=model_help)
    parser.add_argument("--samples", type=positive, metavar="N", help="episodes per task; default: the largest k")
    parser.add_argument("--k", type=numbers, default=[1], metavar="K,...", help="k of pass@k; default: 1")
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: a new folder below evaluations/")
    add_request_flags(parser, EvaluationRequest)
    add_run_flags(parser)
    return parser.run(_eval, argv)


def numbers(text: str) -> list[int]:
    """Convert an argument such as `1,5` to sorted numbers."""
    return sorted({positive(part.strip()) for part in text.split(",")})


def _eval(options: argparse.Namespace) -> None:
    from marl_ray.evaluation.evaluate import default_folder, evaluation_config, run_evaluation

    configure_logging(options)
    config = evaluation_config(options.model, options.config, overrides=overrides_of(options, FLAGS))
    request = request_of(
        EvaluationRequest,
        options,
        models=options.model,
        samples=options.samples or max(options.k),
        ks=options.k,
        folder=options.output or default_folder(config.dataset),
    )
    print(run_evaluation(config, request))
