"""`marl-ray train`, also used by `train_magrpo` and `train_grpo`, and the config of `train` and `plan`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_ray.cli.parser import Parser, add_overrides, add_verbosity, configure_logging
from marl_ray.core.errors import UserError
from marl_ray.core.text import did_you_mean

if TYPE_CHECKING:
    from marl_ray.config import Config
    from marl_ray.storage.resume import SavedRun
    from marl_ray.trainer.context import RunInputs

logger = logging.getLogger(__name__)
ALGORITHMS = ("magrpo", "grpo")
EXAMPLES = """examples:
  {prog} --config configs/quickstart.yaml
  {prog} --config configs/quickstart.yaml --override {section}.num_turns=1 output.run_name=one
  {prog} --resume runs/one --override {section}.max_steps=40

marl-ray explain {section} lists the settings for --override."""


def main(argv: Sequence[str]) -> int:
    return _main(None, "marl-ray train", argv)


def train_main(name: str, argv: Sequence[str] | None = None) -> int:
    """Run `python -m marl_ray.train_magrpo` or `train_grpo` and return the exit code."""
    return _main(name, f"python -m marl_ray.train_{name}", argv)


def _main(name: str | None, prog: str, argv: Sequence[str] | None) -> int:
    """Run the command of one algorithm, or with None the command for all."""
    epilog = EXAMPLES.format(prog=prog, section=name or "magrpo")
    description = "Train the agents of a YAML config" + (f" with {name}." if name else ".")
    parser = Parser(prog=prog, description=description, epilog=epilog)
    if name is None:
        add_algorithm(parser)
    parser.set_defaults(algorithm=name)
    add_config_flags(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config and exit")
    add_verbosity(parser)
    return parser.run(_train, argv)


def _train(options: argparse.Namespace) -> None:
    configure_logging(options)
    config, saved = read_config(options)
    if options.dry_run:
        print_dry_run(config, saved)
    else:
        from marl_ray.launch.run import train

        train(config, saved)


def print_dry_run(config: Config, saved: SavedRun | None) -> RunInputs | None:
    """Check the config and print it with its budget. Return None if the run is complete. Raises UserError."""
    from marl_ray.cluster.resource_text import describe_demands
    from marl_ray.config import to_yaml
    from marl_ray.config.budget_text import describe_budget
    from marl_ray.launch.run_checks import check
    from marl_ray.storage.resume import RunIsDone

    try:
        inputs = check(config, saved, dry=True)
    except RunIsDone as done:
        if config.output.resume == "never":
            raise
        sys.stderr.write(f"{done}\n")
        return None
    notes = [describe_budget(config, len(inputs.train_tasks) or None), *inputs.prompt_notes]
    for prompt in inputs.rendered_prompts:
        notes.append(prompt.excerpt)
    notes.append(describe_demands(config.agents, config.lora, config.resources))
    # Standard output has the YAML alone, so that it can be redirected to a file.
    sys.stdout.write(to_yaml(config))
    sys.stderr.write("\n".join(notes) + "\n")
    return inputs


def add_algorithm(parser: Parser) -> None:
    """Add the algorithm as an argument that may be left out."""
    help_text = "magrpo, or grpo for a single agent; default: the section in the file, or the algorithm of the run"
    parser.add_argument("algorithm", nargs="?", type=algorithm, help=help_text)


def algorithm(name: str) -> str:
    """Convert an argument to the name of an algorithm."""
    if Path(name).suffix in (".yaml", ".yml"):
        raise argparse.ArgumentTypeError(f"give the file as --config {name}")
    if name not in ALGORITHMS:
        near = did_you_mean(name, ALGORITHMS) or f": there are {' and '.join(ALGORITHMS)}"
        raise argparse.ArgumentTypeError(f"unknown algorithm {name}{near}")
    return name


def add_config_flags(parser: Parser) -> None:
    """Add the flags of `read_config`."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file")
    add_overrides(parser)
    parser.add_argument("--resume", type=Path, metavar="RUN_DIR", help="resume this run after its last logged step")
    parser.add_argument("--model_name", metavar="NAME", help="same as --override model_name=NAME")
    parser.add_argument("--num_epochs", type=int, metavar="N", help="same as num_train_epochs")
    parser.add_argument("--num_turns", type=int, metavar="N", help="same as num_turns")
    weights = "turn_gradient_weights"
    parser.add_argument(f"--{weights}", type=float, nargs="+", metavar="W", help=f"same as {weights}")


def read_config(options: argparse.Namespace) -> tuple[Config, SavedRun | None]:
    """Return the config, and the run to resume or None. Raises UserError."""
    from marl_ray.config import algorithm_of, load, parse_overrides
    from marl_ray.launch.run_checks import existing_run
    from marl_ray.storage.resume import SavedRun

    if options.resume is None and options.config is None:
        raise UserError("no config: give --config FILE, or --resume RUN_DIR")
    if options.resume is not None and options.config is not None:
        raise UserError("--resume uses the config.yaml of the run: leave out --config and use --override")
    overrides = parse_overrides(options.override)
    if options.resume is not None and "output.base_dir" in overrides:
        raise UserError("--resume continues in the run's folder: leave out output.base_dir, or move the folder")
    saved = SavedRun.read(options.resume) if options.resume is not None else None
    name = options.algorithm
    if name is None:
        name = saved.algorithm if saved else algorithm_of(options.config)
    flags: dict[str, Any] = {
        "model_name": options.model_name,
        f"{name}.num_train_epochs": options.num_epochs,
        f"{name}.num_turns": options.num_turns,
        f"{name}.turn_gradient_weights": options.turn_gradient_weights,
    }
    for key, value in flags.items():
        if value is not None:
            # The last spelling of a setting counts, so that flags take precedence over overrides.
            overrides.pop(key, None)
            overrides[key] = value
    if saved is None:
        config = load(options.config, name, overrides, logger.info)
        if config.output.resume != "auto":
            return config, None
        return config, existing_run(config)
    if saved.algorithm != name:
        raise UserError(f"{options.resume} is a {saved.algorithm} run: resume it with {saved.algorithm}, not {name}")
    return saved.config(overrides, logger.info), saved
