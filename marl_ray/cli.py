"""Command lines: `marl-ray train|plan|report|sandbox`, and what the train_* modules share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from marl_ray.config import Config, ConfigError, load, parse_overrides, to_yaml
from marl_ray.config.arithmetic import describe
from marl_ray.config.schema import ALGORITHMS
from marl_ray.telemetry.console import say

INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """A mistake is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (--help shows what there is)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """The console script `marl-ray`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["sandbox"]:
        from marl_ray.sandbox.cli import main as sandbox_main

        return sandbox_main(arguments[1:])
    parser = _Parser(prog="marl-ray", description="Train cooperating language models on code tasks.")
    commands = parser.add_subparsers(dest="command", required=True)
    for command, text in (("train", "train the agents"), ("plan", "check a config and show its arithmetic")):
        sub = commands.add_parser(command, help=text, description=text)
        sub.add_argument("algorithm", choices=ALGORITHMS)
        _add_train_arguments(sub)
    report = commands.add_parser("report", help="summarise a run folder and draw its plot again")
    report.add_argument("run_dir", type=Path)
    commands.add_parser("sandbox", help="run programs in the sandbox, or ask what it can do here", add_help=False)
    options = parser.parse_args(arguments)
    if options.command == "report":
        return _report(options.run_dir)
    return _train(options.algorithm, options, dry_run=options.dry_run or options.command == "plan")


def train_main(algorithm: str, argv: Sequence[str] | None = None) -> int:
    """`python -m marl_ray.train_magrpo` and `train_grpo`."""
    parser = _Parser(
        prog=f"python -m marl_ray.train_{algorithm}", description=f"Train with {algorithm} from a YAML config."
    )
    _add_train_arguments(parser)
    options = parser.parse_args(argv)
    return _train(algorithm, options, dry_run=options.dry_run)


def _add_train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, help="YAML file")
    parser.add_argument(
        "--override", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="settings, as section.key=value"
    )
    parser.add_argument("--resume", type=Path, metavar="RUN_DIR", help="go on from this run's last checkpoint")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config and start nothing")
    parser.add_argument("--model_name", help="same as --override model_name=...")
    parser.add_argument("--num_epochs", type=int, help="same as num_train_epochs")
    parser.add_argument("--num_turns", type=int)
    parser.add_argument("--turn_gradient_weights", type=float, nargs="+")


def _read(algorithm: str, options: argparse.Namespace) -> Config:
    """The config that the command line asks for. Raises ConfigError."""
    flags: dict[str, Any] = {
        "model_name": options.model_name,
        f"{algorithm}.num_train_epochs": options.num_epochs,
        f"{algorithm}.num_turns": options.num_turns,
        f"{algorithm}.turn_gradient_weights": options.turn_gradient_weights,
    }
    flags = {key: value for key, value in flags.items() if value is not None}
    overrides = {key: value for key, value in parse_overrides(options.override).items() if key not in flags}
    overrides |= flags  # last, so that a flag beats an override
    if options.resume is not None:
        from marl_ray.runs.run import saved_config

        if options.config is not None:
            raise ConfigError("--resume reads the run's own config.yaml: leave --config away, use --override")
        saved = saved_config(options.resume, overrides, say)
        if saved.algorithm_name != algorithm:
            raise ConfigError(
                f"{options.resume} is a run of {saved.algorithm_name}: resume it with that, not {algorithm}"
            )
        return saved
    if options.config is None:
        raise ConfigError("no config: give --config FILE, or --resume RUN_DIR")
    return load(options.config, algorithm, overrides, say)


def _train(algorithm: str, options: argparse.Namespace, dry_run: bool) -> int:
    from marl_ray.data import DataError

    try:
        config = _read(algorithm, options)
        if dry_run:
            return _dry_run(config, options.resume)
        from marl_ray.runs.run import RunError, train

        try:
            train(config, options.resume)
        except RunError as error:
            return _fail(error)
    except (ConfigError, DataError) as error:
        return _fail(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _dry_run(config: Config, resume: Path | None) -> int:
    """All that can be said and checked without a download and without starting anything."""
    from marl_ray.cluster.plan import demands
    from marl_ray.models.names import describe_prompts
    from marl_ray.runs.check import check, check_run_dir

    try:
        problem = check(config, download=False)
        if resume is None:
            check_run_dir(config)
        else:
            from marl_ray.runs.run import check_resume

            check_resume(config, resume, len(problem.train_tasks))
    except ValueError as error:
        return _fail(error)
    sys.stdout.write(to_yaml(config))
    facts = [describe(config, len(problem.train_tasks) or None), *describe_prompts(config), demands(config)]
    sys.stderr.write("\n".join(facts) + "\n")
    return 0


def _report(run_dir: Path) -> int:
    from marl_ray.reports.plots import PLOT, plot_returns
    from marl_ray.telemetry.record import read_metrics

    try:
        rows = read_metrics(run_dir)
    except ValueError as error:
        return _fail(error)
    last = max((row["step"] for row in rows), default=0)
    for row in rows:
        for prefix, what in (("eval/", "held-out"), ("", "training")):
            turns = [
                f"{v:.2f}" for k, v in row.items() if k.startswith(f"{prefix}turn_") and k.endswith("/reward_mean")
            ]
            if turns and (prefix or row["step"] == last):
                print(f"step {row['step']:>5}  {row['env_steps']:>8} joint samples  {what} reward {' '.join(turns)}")
    plot_returns(rows, run_dir / PLOT, run_dir.name)
    print(run_dir / PLOT)
    return 0


def _fail(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 1
