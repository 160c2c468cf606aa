"""`marl-ray COMMAND`: finds the command's file."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from marl_ray.cli.parser import Parser
from marl_ray.core.text import did_you_mean

COMMANDS = {
    "train": "train the agents",
    "plan": "check a config, show it resolved with its arithmetic, and start nothing",
    "eval": "estimate pass@k, returns and levels of models on a split, and compare them",
    "score": "score completions from a file, without any model",
    "report": "a page of a run, or of several beside each other",
    "scale": "give an agent more or fewer generators while its run goes on",
    "replay": "learn from a run's batch log again, and compare with what was recorded",
    "explain": "what a setting means, its type and default; or the settings of a section",
    "sandbox": "run programs in the sandbox, or ask what it can do here",
}
"""Each is `main(arguments) -> exit code` in the module of its name."""


def main(argv: Sequence[str] | None = None) -> int:
    """The console script `marl-ray`. Returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(
        prog="marl-ray",
        usage="marl-ray COMMAND ...",
        description="Train cooperating language models on code tasks.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<9} {text}" for name, text in COMMANDS.items())
        + "\n\nmarl-ray COMMAND --help says more of one.",
    )
    if "--version" in arguments[:1]:
        from marl_ray.core.installed_versions import (
            version_line,
        )  # reads what is installed, which other commands need not wait for

        print(version_line())
        return 0
    parser.add_argument("--version", action="store_true", help="show the versions of this, torch, vllm and ray")
    if not arguments or arguments[0].startswith("-"):
        parser.parse_args(arguments)
        parser.error(f"give a command: {', '.join(COMMANDS)}")
    command, *rest = arguments
    if command not in COMMANDS:
        parser.error(f"unknown command {command}{did_you_mean(command, COMMANDS)}")
    return importlib.import_module(f"marl_ray.cli.{command}").main(rest)
