"""`marl-ray eval`: pass@k, returns and levels of policies on a split, with intervals."""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_ray.cli.parser import Parser, add_quiet, exit_code_of
from marl_ray.cli.score import positive
from marl_ray.core.errors import UserError

if TYPE_CHECKING:
    from marl_ray.config import Config

logger = logging.getLogger(__name__)

EPILOG = """examples:
  marl-ray eval --model runs/one
  marl-ray eval --config configs/mt_magrpo_he_config.yaml --model base --samples 20 --k 1,5,10
  marl-ray eval --config configs/quickstart.yaml --model base --model runs/one --samples 5 --k 1,5
  marl-ray eval --model runs/one --model runs/one/checkpoints/step_000024 --split 'test[:32]'
  marl-ray eval --config configs/quickstart.yaml --model base --model runs/one --swap
  marl-ray eval --model runs/one --protocol single --override magrpo.eval_temperature=0

protocols:
  parallel    all agents answer at the same time, as trained
  single      the last agent alone, with the prompts of a single agent
  sequential  agents answer one after another and read what those before them have answered
  discussion  all answer, read what the others have answered, and answer once more

docs/how-to/evaluate.md says what is estimated, and how."""


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit code."""
    parser = Parser(
        prog="marl-ray eval",
        description="Play models on a split, as training's evaluations do, and estimate pass@k, mean return and\n"
        "levels a turn, with intervals; several models are compared task by task.",
        epilog=EPILOG,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file; if not given, that of the first run")
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="MODEL",
        help="base (the config's models), a run's folder, or a checkpoint's; repeat to compare",
    )
    parser.add_argument("--split", metavar="SPLIT", help="if not given, the tasks of training's evaluations")
    parser.add_argument("--samples", type=positive, metavar="N", help="episodes a task; if not given, the largest k")
    parser.add_argument("--k", type=numbers, default=[1], metavar="K,...", help="of pass@k; 1 if not given")
    parser.add_argument("--protocol", default="parallel", metavar="NAME", help="see below; parallel if not given")
    parser.add_argument("--swap", action="store_true", help="models in each other's places: every combination")
    parser.add_argument("--output", type=Path, metavar="DIR", help="if not given, a new folder below evaluations/")
    parser.add_argument("--episodes", action="store_true", help="write every episode, with all texts")
    parser.add_argument(
        "--override", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="settings, as section.key=value"
    )
    add_quiet(parser)
    options = parser.parse_args(argv)
    return exit_code_of(lambda: _eval(options))


def numbers(text: str) -> list[int]:
    """`1,5` as an argument's type."""
    return sorted({positive(part.strip()) for part in text.split(",")})


def _eval(options: argparse.Namespace) -> None:
    from marl_ray.evaluation.evaluate import EvaluationRequest, run
    from marl_ray.telemetry import logs

    logs.configure(logging.WARNING if options.quiet else logging.INFO)
    config = load_config(options)
    stamp = f"{config.dataset.type.replace(':', '.')}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    request = EvaluationRequest(
        models=options.model,
        split=options.split,
        samples=options.samples or max(options.k),
        ks=options.k,
        protocol=options.protocol,
        swap=options.swap,
        folder=options.output or Path("evaluations") / stamp,
        episodes=options.episodes,
    )
    for line in run(config, request):
        print(line)


def load_config(options: argparse.Namespace) -> Config:
    """The file's, or the first run's, to be played a sample at a time. Raises UserError."""
    from marl_ray.config import ALGORITHMS, from_tree, parse_overrides
    from marl_ray.config.parsing import read_yaml
    from marl_ray.evaluation.model_sources import BASE, run_folder_of
    from marl_ray.storage.resume import SavedRun

    given = parse_overrides(options.override)

    def overrides(algorithm: str) -> dict[str, Any]:
        return {f"{algorithm}.eval_num_generations": 1, **given}

    if options.config is not None:
        tree = read_yaml(options.config)
        algorithm = next((name for name in ALGORITHMS if name in tree), ALGORITHMS[0])
        return from_tree(tree, algorithm, overrides(algorithm), logger.info)
    run = next((name for name in options.model if name != BASE), None)
    if run is None:
        raise UserError("no config: give --config FILE, or the --model of a run")
    saved = SavedRun.read(run_folder_of(Path(run)))
    return saved.config(overrides(saved.algorithm), logger.info)
