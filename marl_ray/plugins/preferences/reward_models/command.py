"""`marl-ray rewardmodel`: train a reward model on joint preferences."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from marl_ray.cli.parser import Parser, add_run_flags, configure_logging
from marl_ray.cli.request_flags import add_request_flags, request_of
from marl_ray.plugins.preferences.command import PAIRS, share

EPILOG = """examples:
  marl-ray rewardmodel --config configs/quickstart.yaml --preferences pairs.jsonl --to models/reward
  marl-ray rewardmodel --config FILE --preferences runs/one/episodes.jsonl runs/two/episodes.jsonl --to models/reward
  marl-ray train --config FILE --override environment=reward_model reward_model.environment=code_generation \\
      reward_model.name=models/reward

a line of the preferences file, for two agents:
  {"task_id": "toy/1", "chosen": ["def aux(x): ...", "def main(x): ..."], "rejected": ["...", "..."]}

See docs/explanation/preferences.md."""


@dataclass(frozen=True, slots=True)
class RewardModelRequest:
    """The arguments of `marl-ray rewardmodel`, other than the config."""

    preferences: Sequence[Path]
    """preferences, or episodes.jsonl of a run or an evaluation; several files are joined"""
    to: Annotated[Path, "DIR"]
    """new or empty folder"""
    model: str | None = None
    """language model or reward model to start from; default: the first agent's model"""
    pairs: int = PAIRS
    """pairs per prompt of episodes, by the largest differences of rewards"""
    epochs: int = 1
    """passes over the preferences"""
    batch_size: int = 8
    """pairs per step"""
    learning_rate: Annotated[float | None, "LR"] = None
    """peak learning rate; default: that of the first agent"""
    held_out: Annotated[float, share, "SHARE"] = 0.1
    """share of the prompts on which the loss is measured only"""
    head_only: bool = False
    """train the head and not the language model"""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray rewardmodel",
        description="Train a reward model on joint preferences, in a file or between the answers of episodes.\n"
        "The environment reward_model rewards joint answers with the score of this model.",
        epilog=EPILOG,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="YAML file of the agents")
    add_request_flags(parser, RewardModelRequest)
    add_run_flags(parser)
    return parser.run(_reward_model, argv)


def _reward_model(options: argparse.Namespace) -> None:
    from marl_ray.config import from_keywords, parse_overrides
    from marl_ray.plugins.preferences.reward_models.make_reward_model import make_reward_model

    configure_logging(options)
    request = request_of(RewardModelRequest, options)
    config = from_keywords(options.config, None, {}, parse_overrides(options.override))
    print(make_reward_model(config, request))
