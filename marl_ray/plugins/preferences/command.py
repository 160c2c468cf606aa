"""`marl-ray warmstart`: fine-tune the agents on good answers or preferences before reinforcement learning."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from marl_ray.cli.parser import Parser, add_run_flags, configure_logging, positive_number
from marl_ray.cli.request_flags import add_request_flags, request_of

EPILOG = """examples:
  marl-ray warmstart --run runs/one --min-return 4 --to warm/one
  marl-ray warmstart --config configs/quickstart.yaml --answers answers.jsonl --to warm/two --epochs 3
  marl-ray warmstart --config configs/quickstart.yaml --answers evaluations/one/episodes.jsonl --best 2 --to warm/three
  marl-ray warmstart --config configs/quickstart.yaml --preferences pairs.jsonl --to warm/four
  marl-ray warmstart --config configs/quickstart.yaml --preferences runs/one/episodes.jsonl --to warm/five

a line of the answers file, for two agents:
  {"task_id": "toy/1", "completions": ["def aux(x): ...", "def main(x): ..."], "reward": 4.0}
  {"prompts": ["Write a helper ...", "Write main ..."], "completions": ["def aux(x): ...", "def main(x): ..."]}

a line of the preferences file:
  {"task_id": "toy/1", "chosen": ["def aux(x): ...", "def main(x): ..."], "rejected": ["...", "..."]}

See docs/how-to/warmstart.md and docs/explanation/preferences.md."""
PAIRS = 4


def share(text: str) -> float:
    """Convert an argument to a number between 0 and 1, both excluded."""
    number = positive_number(text)
    if number >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number below 1")
    return number


@dataclass(frozen=True, slots=True)
class WarmStartRequest:
    """The arguments of `marl-ray warmstart`, other than the config. The source of answers is `run`, `answers` or
    `preferences`."""

    to: Annotated[Path, "DIR"]
    """new or empty folder"""
    run: Path | None = None
    answers: Path | None = None
    preferences: Sequence[Path] = ()
    no_reference: bool = False
    """with --preferences: do not compare with the models before training"""
    pairs: int | None = None
    """with --preferences: pairs per prompt of episodes, by the largest differences of rewards; default: 4"""
    min_return: Annotated[float | None, float, "R"] = None
    """only answers with at least this return"""
    best: int | None = None
    """only the N best answers of each group, above its mean; default without --min-return: 1"""
    epochs: int = 2
    """passes over the answers or preferences"""
    batch_size: int = 8
    """answers per step"""
    learning_rate: Annotated[float | None, "LR"] = None
    """peak learning rate; default: that of each agent"""
    held_out: Annotated[float, share, "SHARE"] = 0.1
    """share of the prompts on which the loss is measured only"""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray warmstart",
        description="Fine-tune every policy on good answers: a run's own answers with high returns (rejection\n"
        "sampling), or answers in a file; or on joint preferences in a file (joint-factorised DPO).\n"
        "Writes one model per policy and a config.yaml that trains them further.",
        epilog=EPILOG,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", type=Path, metavar="RUN_DIR", help="take the answers of this run's batch log")
    source.add_argument("--answers", type=Path, metavar="FILE", help="take the answers of a .jsonl file, for --config")
    preferences_help = "learn from the pairs of .jsonl files, or pairs between the answers of episodes, for --config"
    source.add_argument("--preferences", type=Path, nargs="+", default=(), metavar="FILE", help=preferences_help)
    parser.flags += ["--run", "--answers", "--preferences"]
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file; default with --run: the run's config")
    add_request_flags(parser, WarmStartRequest)
    add_run_flags(parser)
    return parser.run(_warmstart, argv)


def _warmstart(options: argparse.Namespace) -> None:
    from marl_ray.config import from_keywords, parse_overrides
    from marl_ray.core.errors import UserError
    from marl_ray.plugins.preferences.warm_start import warm_start
    from marl_ray.storage.resume import SavedRun

    configure_logging(options)
    request = request_of(WarmStartRequest, options)
    source = options.config
    if source is None:
        if request.run is None:
            raise UserError("a file of answers or preferences needs the config of the agents: give --config FILE")
        source = SavedRun.read(request.run).tree
    if request.no_reference and not request.preferences:
        raise UserError("--no-reference is for --preferences: leave it out")
    if request.pairs is not None and not request.preferences:
        raise UserError("--pairs is for --preferences: leave it out")
    if request.preferences and (request.min_return is not None or request.best is not None):
        raise UserError("--min-return and --best select answers, and --preferences has pairs: leave them out")

    print(warm_start(from_keywords(source, None, {}, parse_overrides(options.override)), request))
