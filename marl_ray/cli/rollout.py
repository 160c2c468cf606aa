"""`marl-ray rollout`: play episodes without training, and print their rewards."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser, add_run_flags, configure_logging, overrides_of
from marl_ray.cli.request_flags import add_request_flags, request_of
from marl_ray.evaluation.requests import RolloutRequest

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
    add_request_flags(parser, RolloutRequest)
    add_run_flags(parser)
    return parser.run(_rollout, argv)


def _rollout(options: argparse.Namespace) -> None:
    from marl_ray.evaluation.evaluate import evaluation_config
    from marl_ray.evaluation.rollouts import play_rollouts

    configure_logging(options)
    config = evaluation_config([options.model], options.config, overrides=overrides_of(options))
    play_rollouts(config, request_of(RolloutRequest, options), lambda line: print(line, flush=True))
