"""`marl-ray warmstart`: fine-tune the agents on good answers or preferences before reinforcement learning."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser, add_run_flags, configure_logging, positive, positive_number

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
    source.add_argument("--preferences", type=Path, nargs="+", metavar="FILE", help=preferences_help)
    parser.flags += ["--run", "--answers", "--preferences"]
    reference_help = "with --preferences: do not compare with the models before training"
    parser.add_argument("--no-reference", action="store_true", help=reference_help)
    pairs_help = (
        f"with --preferences: pairs per prompt of episodes, by the largest differences of rewards; default: {PAIRS}"
    )
    parser.add_argument("--pairs", type=positive, metavar="N", help=pairs_help)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file; default with --run: the run's config")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="new or empty folder")
    least_help = "only answers with at least this return"
    parser.add_argument("--min-return", type=float, metavar="R", help=least_help)
    best_help = "only the N best answers of each group, above its mean; default without --min-return: 1"
    parser.add_argument("--best", type=positive, metavar="N", help=best_help)
    parser.add_argument("--epochs", type=positive, default=2, metavar="N", help="default: 2")
    parser.add_argument("--batch-size", type=positive, default=8, metavar="N", help="answers per step; default: 8")
    rate_help = "peak learning rate; default: that of each agent"
    parser.add_argument("--learning-rate", type=positive_number, metavar="LR", help=rate_help)
    held_help = "share of the prompts on which the loss is measured only; default: 0.1"
    parser.add_argument("--held-out", type=share, default=0.1, metavar="SHARE", help=held_help)
    add_run_flags(parser)
    return parser.run(_warmstart, argv)


def share(text: str) -> float:
    """Convert an argument to a number between 0 and 1, both excluded."""
    number = positive_number(text)
    if number >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number below 1")
    return number


def _warmstart(options: argparse.Namespace) -> None:
    from marl_ray.config import from_keywords, parse_overrides
    from marl_ray.core.errors import UserError
    from marl_ray.plugins.preferences.selection import AnswerSelection
    from marl_ray.plugins.preferences.warm_start import WarmStartRequest, warm_start
    from marl_ray.storage.resume import SavedRun

    configure_logging(options)
    if options.config is None and options.run is None:
        raise UserError("a file of answers or preferences needs the config of the agents: give --config FILE")
    if options.no_reference and options.preferences is None:
        raise UserError("--no-reference is for --preferences: leave it out")
    if options.pairs is not None and options.preferences is None:
        raise UserError("--pairs is for --preferences: leave it out")
    if options.preferences is not None and (options.min_return is not None or options.best is not None):
        raise UserError("--min-return and --best select answers, and --preferences has pairs: leave them out")
    source = options.config or SavedRun.read(options.run).tree
    chosen = options.min_return is not None or options.best is not None
    request = WarmStartRequest(
        run=options.run,
        answers=options.answers,
        folder=options.to,
        selection=AnswerSelection(options.min_return, options.best) if chosen else None,
        epochs=options.epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        held_out=options.held_out,
        preferences=tuple(options.preferences or ()),
        pairs=options.pairs or PAIRS,
        has_reference=not options.no_reference,
    )
    print(warm_start(from_keywords(source, None, {}, parse_overrides(options.override)), request))
