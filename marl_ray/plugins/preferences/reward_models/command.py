"""`marl-ray rewardmodel`: train a reward model on joint preferences."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser, add_overrides, add_verbosity, configure_logging, positive
from marl_ray.plugins.preferences.command import PAIRS, PAIRS_HELP, positive_number, share

EPILOG = """examples:
  marl-ray rewardmodel --config configs/quickstart.yaml --preferences pairs.jsonl --to models/reward
  marl-ray rewardmodel --config FILE --preferences runs/one/episodes.jsonl runs/two/episodes.jsonl --to models/reward
  marl-ray train --config FILE --override environment=reward_model reward_model.environment=code_generation \\
      reward_model.name=models/reward

a line of the preferences file, for two agents:
  {"task_id": "toy/1", "chosen": ["def aux(x): ...", "def main(x): ..."], "rejected": ["...", "..."]}

See docs/explanation/preferences.md."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray rewardmodel",
        description="Train a reward model on joint preferences, in a file or between the answers of episodes.\n"
        "The environment reward_model rewards joint answers with the score of this model.",
        epilog=EPILOG,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="YAML file of the agents")
    files_help = "preferences, or episodes.jsonl of a run or an evaluation; several files are joined"
    parser.add_argument("--preferences", type=Path, nargs="+", required=True, metavar="FILE", help=files_help)
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="new or empty folder")
    model_help = "language model or reward model to start from; default: the first agent's model"
    parser.add_argument("--model", metavar="MODEL", help=model_help)
    parser.add_argument("--pairs", type=positive, default=PAIRS, metavar="N", help=PAIRS_HELP)
    parser.add_argument("--epochs", type=positive, default=1, metavar="N", help="default: 1")
    parser.add_argument("--batch-size", type=positive, default=8, metavar="N", help="pairs per step; default: 8")
    rate_help = "peak learning rate; default: that of the first agent"
    parser.add_argument("--learning-rate", type=positive_number, metavar="LR", help=rate_help)
    held_help = "share of the prompts on which the loss is measured only; default: 0.1"
    parser.add_argument("--held-out", type=share, default=0.1, metavar="SHARE", help=held_help)
    parser.add_argument("--head-only", action="store_true", help="train the head and not the language model")
    add_overrides(parser)
    add_verbosity(parser)
    return parser.run(_reward_model, argv)


def _reward_model(options: argparse.Namespace) -> None:
    from marl_ray.config import from_keywords, parse_overrides
    from marl_ray.plugins.preferences.reward_models.make_reward_model import RewardModelRequest, make_reward_model

    configure_logging(options)
    request = RewardModelRequest(
        preferences=tuple(options.preferences),
        folder=options.to,
        name=options.model,
        epochs=options.epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        held_out=options.held_out,
        pairs=options.pairs,
        head_only=options.head_only,
    )
    print(make_reward_model(from_keywords(options.config, None, {}, parse_overrides(options.override)), request))
