"""`marl-ray COMMAND`: dispatch to the module of a command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from marl_ray.cli.parser import Parser, exit_code_of
from marl_ray.core.text import did_you_mean

COMMANDS = {
    "train": "train the agents",
    "warmstart": "fine-tune the agents on good answers, of a run or of a file, before training",
    "rewardmodel": "train a reward model on joint preferences",
    "plan": "check a config, print it resolved, and estimate memory, placement and time",
    "eval": "estimate pass@k, returns and levels of models on a split, and compare models",
    "rollout": "play episodes without training and print their rewards",
    "compare": "compare runs: paired differences, a table and a figure for a paper",
    "score": "reward the completions in a file, without a model",
    "convert": "write results and samples in the formats of EvalPlus, LiveCodeBench, lm-eval and inspect",
    "export": "write the trained models of a run for transformers, the hub and other programs",
    "serve": "serve a trained team over HTTP: an OpenAI-compatible API, an MCP tool and a page",
    "environment": "serve an environment and its tasks to other programs, without training",
    "report": "write an HTML report of one or several runs",
    "scale": "change the number of generators of an agent while its run is in progress",
    "replay": "repeat the updates of a run from its batch log and compare the metrics",
    "explain": "show the type, default and description of settings, or the JSON Schema",
    "doctor": "describe this machine, and check the code paths that need a GPU",
    "completion": "print a completion script for bash, zsh or fish",
    "sandbox": "run programs in the sandbox, or check its isolation on this machine",
}
"""Summary by command. The module of a command has `main(arguments) -> exit code`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script `marl-ray` and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(
        prog="marl-ray",
        usage="marl-ray COMMAND ...",
        description="Train several language models that solve tasks together.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<11} {text}" for name, text in COMMANDS.items())
        + "\n\nmarl-ray COMMAND --help shows the flags of a command.",
    )
    if "--version" in arguments[:1]:
        from marl_ray.core.installed_versions import version_line  # slow: it reads the metadata of all packages

        return exit_code_of(lambda: print(version_line()))
    parser.add_argument("--version", action="store_true", help="show the versions of marl-ray, torch, vllm and ray")
    if not arguments or arguments[0].startswith("-"):
        parser.parse_args(arguments)
        parser.error(f"give a command: {', '.join(COMMANDS)}")
    command, *rest = arguments
    if command not in COMMANDS:
        parser.error(f"unknown command {command}{did_you_mean(command, COMMANDS)}")
    return importlib.import_module(module_of(command)).main(rest)


def module_of(command: str) -> str:
    """Return the module of a command."""
    return "marl_ray.sandbox.__main__" if command == "sandbox" else f"marl_ray.cli.{command}"
