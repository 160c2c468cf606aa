"""`marl-ray score`: reward the completions in a file, without a model."""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser, add_overrides, add_verbosity, configure_logging, positive
from marl_ray.core.errors import UserError

logger = logging.getLogger(__name__)

EPILOG = """examples:
  marl-ray score --type humaneval --dataset humaneval.jsonl --completions mine.jsonl > scored.jsonl
  marl-ray score --type mbpp --dataset mbpp.jsonl --completions mine.jsonl --feedback level_feedback
  marl-ray score --type toy --dataset bundled:toy --split eval --completions mine.jsonl \\
      --override sandbox.test_timeout_s=2 external.sandbox_slice=all

a line of the completions file, for two agents:
  {"task_id": "HumanEval/0", "completions": ["def aux(x): ...", "def main(x): ..."]}

a line of the output, in the same order:
  {"task_id": "HumanEval/0", "reward": 4.0, "levels": {"main": 0.6, ...}, "metrics": {...}, "report": {...}}

See docs/how-to/evaluate.md."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray score",
        description="Score completions without a model. Completions are parsed, executed and rewarded as in training.\n"
        "Prints one JSON line per line of the file. The number of agents is the number of completions per line.",
        epilog=EPILOG,
    )
    parser.add_argument("--type", required=True, metavar="TYPE", help="dataset.type, which determines the rewards")
    parser.add_argument("--dataset", required=True, metavar="FILE", help="tasks: a .jsonl or .parquet file, or hub id")
    parser.add_argument("--split", default="test", metavar="SPLIT", help="default: test, the split of a file")
    parser.add_argument("--completions", required=True, type=Path, metavar="FILE", help="a .jsonl file of completions")
    parser.add_argument("--feedback", metavar="MODE", help="add the next prompts of this external.mode")
    parser.add_argument("--workers", type=positive, metavar="N", help="parallel sandboxes; default: one per core")
    add_overrides(parser)
    add_verbosity(parser)
    return parser.run(_score, argv)


def _score(options: argparse.Namespace) -> None:
    import asyncio

    from tqdm import tqdm

    from marl_ray.config import parse_overrides
    from marl_ray.data import DATASETS
    from marl_ray.evaluation import scoring
    from marl_ray.telemetry.logs import progress_bar_disabled

    configure_logging(options)
    DATASETS.check(options.type)
    tasks = scoring.tasks_by_id(options.dataset, options.split, options.type)
    responses = scoring.read_completions(options.completions, tasks)
    overrides = parse_overrides(options.override)
    scorer = scoring.CompletionScorer(options.type, responses, options.feedback, overrides)
    workers = min(options.workers or os.cpu_count() or 1, len(responses))
    limit = scoring.LINES_PER_SANDBOX * workers
    rewards: list[float] = []

    async def score() -> None:
        hidden = progress_bar_disabled()
        with tqdm(total=len(responses), unit="line", disable=hidden, dynamic_ncols=True, leave=False) as bar:
            async for line in scorer.score_all(responses, sandboxes, limit):
                with tqdm.external_write_mode():
                    print(json.dumps(line), flush=True)
                bar.update()
                if "failure" not in line:
                    rewards.append(line["reward"])

    with scoring.LocalSandboxPool(scorer.sandbox, workers) as sandboxes:
        logger.info(sandboxes.describe())
        asyncio.run(score())
    if rewards:
        logger.info(f"{len(rewards)} lines scored, mean reward {sum(rewards) / len(rewards):.4f}")
    if failures := len(responses) - len(rewards):
        raise UserError(f"{failures} of {len(responses)} lines have no verdict: see `failure` in these lines")
