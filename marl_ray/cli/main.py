"""`marl-ray COMMAND`: dispatch to the module of a command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence

from marl_ray import registry
from marl_ray.cli.parser import Parser, exit_code_of
from marl_ray.core.text import did_you_mean
from marl_ray.registry import ShellCommand

COMMANDS = {
    "train": ShellCommand("marl_ray.cli.train", "train the agents"),
    "eval": ShellCommand(
        "marl_ray.cli.eval", "estimate pass@k, returns and levels of models on a split, and compare models"
    ),
    "rollout": ShellCommand("marl_ray.cli.rollout", "play episodes without training and print their rewards"),
    "score": ShellCommand("marl_ray.cli.score", "reward the completions in a file, without a model"),
    "scale": ShellCommand(
        "marl_ray.cli.scale", "change the number of generators of an agent while its run is in progress"
    ),
    "replay": ShellCommand(
        "marl_ray.cli.replay", "repeat the updates of a run from its batch log and compare the metrics"
    ),
    "explain": ShellCommand(
        "marl_ray.cli.explain", "show the type, default and description of settings, or the JSON Schema"
    ),
    "completion": ShellCommand("marl_ray.cli.completion", "print a completion script for bash, zsh or fish"),
    "sandbox": ShellCommand(
        "marl_ray.sandbox.__main__", "run programs in the sandbox, or check its isolation on this machine"
    ),
}
"""Commands of the core by name."""


def all_commands() -> dict[str, ShellCommand]:
    """Return the commands of the core and of plug-ins by name."""
    return COMMANDS | registry.commands()


def _epilog(commands: Mapping[str, ShellCommand]) -> str:
    lines = ["commands:"]
    for name, command in commands.items():
        lines.append(f"  {name:<11} {command.summary}")
    return "\n".join([*lines, "", "marl-ray COMMAND --help shows the flags of a command."])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script `marl-ray` and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = all_commands()
    parser = Parser(
        prog="marl-ray",
        usage="marl-ray COMMAND ...",
        description="Train several language models that solve tasks together.",
        epilog=_epilog(commands),
    )
    if "--version" in arguments[:1]:
        from marl_ray.core.installed_versions import version_line  # slow: it reads the metadata of all packages

        return exit_code_of(lambda: print(version_line()))
    parser.add_argument("--version", action="store_true", help="show the versions of marl-ray, torch, vllm and ray")
    if not arguments or arguments[0].startswith("-"):
        parser.parse_args(arguments)
        parser.error(f"give a command: {', '.join(commands)}")
    name, *rest = arguments
    if name not in commands:
        parser.error(f"unknown command {name}{did_you_mean(name, commands)}")
    return importlib.import_module(commands[name].module).main(rest)
