"""`marl-ray rollout`: play episodes without training, and print their rewards."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser, add_overrides, add_verbosity, configure_logging, positive

EPILOG = """examples:
  marl-ray rollout --config configs/toy_gateway.yaml --tasks 2
  marl-ray rollout --model runs/one --tasks 8 --output episodes.jsonl

docs/how-to/train_a_program.md describes episodes of programs."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray rollout",
        description="Play a group of episodes of some tasks as training would, without learning, and print one line\n"
        "per task with the rewards and the reasons of failures.",
        epilog=EPILOG,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file; default: the config of the model's run")
    model_help = "base (the config's models), bundled:NAME, or a folder of a model, run or checkpoint; default: base"
    parser.add_argument("--model", default="base", metavar="MODEL", help=model_help)
    parser.add_argument("--split", metavar="SPLIT", help="default: the training split of the config")
    parser.add_argument("--tasks", type=positive, default=4, metavar="N", help="number of tasks; default: 4")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the episodes with all texts")
    add_overrides(parser)
    add_verbosity(parser)
    return parser.run(_rollout, argv)


def _rollout(options: argparse.Namespace) -> None:
    from marl_ray.config import parse_overrides
    from marl_ray.evaluation.evaluate import evaluation_config
    from marl_ray.evaluation.rollouts import RolloutRequest, play_rollouts

    configure_logging(options)
    config = evaluation_config([options.model], options.config, overrides=parse_overrides(options.override))
    request = RolloutRequest(options.model, options.split, options.tasks, options.output)
    play_rollouts(config, request, lambda line: print(line, flush=True))
