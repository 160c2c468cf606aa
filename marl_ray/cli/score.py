"""`marl-ray score`: reward the completions in a file, without a model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from marl_ray.cli.parser import Parser, add_run_flags, configure_logging, overrides_of
from marl_ray.cli.request_flags import add_request_flags, request_of
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize
from marl_ray.evaluation.requests import ScoreRequest

EPILOG = """examples:
  marl-ray score --type humaneval --dataset humaneval.jsonl --completions mine.jsonl > scored.jsonl
  marl-ray score --type mbpp --dataset mbpp.jsonl --completions mine.jsonl --feedback level_feedback
  marl-ray score --type toy --dataset bundled:toy --split eval --completions mine.jsonl \\
      --override sandbox.test_timeout_s=2 external.sandbox_slice=all

a line of the completions file, for two agents:
  {"task_id": "HumanEval/0", "completions": ["def aux(x): ...", "def main(x): ..."]}
or of another system, with a whole program:
  {"task_id": "HumanEval/0", "program": "def main(x): ..."}

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
    add_request_flags(parser, ScoreRequest)
    add_run_flags(parser)
    return parser.run(_score, argv)


def _score(options: argparse.Namespace) -> None:
    from marl_ray.evaluation.scoring import score_completions

    configure_logging(options)
    request = request_of(ScoreRequest, options, overrides=overrides_of(options))
    if failures := score_completions(request, lambda line: print(json.dumps(line), flush=True)):
        raise UserError(f"{pluralize(failures, 'line')} without a verdict: see `failure` in these lines")
