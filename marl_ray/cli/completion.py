"""`marl-ray completion SHELL`: print a completion script, which shtab makes from the parsers of all commands."""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import DESCRIBE, Parser, ParserDescription
from marl_ray.sandbox.__main__ import sandbox_parser

EPILOG = """examples:
  marl-ray completion bash > ~/.local/share/bash-completion/completions/marl-ray
  echo 'source <(marl-ray completion bash)' >> ~/.bashrc
  echo 'source <(marl-ray completion zsh)' >> ~/.zshrc
  marl-ray completion fish > ~/.config/fish/completions/marl-ray.fish"""
SANDBOX = "marl_ray.sandbox.__main__"
FILES = ("FILE", "FOLDER", "RUN_DIR", "CONFIG", "MODEL", "RUN")
"""Metavariables of arguments that are paths."""
# shtab's function completes values where a flag follows a flag with several values, as in `--override seed=1 --dr`. And
# a shell adds a space after the only match, but the value of a setting follows its `=`: shtab runs completion functions
# in a subshell, in which `compopt` has no effect.
WRAPPER_OF_BASH = """
_marl_ray() {
  local word=${COMP_WORDS[COMP_CWORD]} options=_shtab_marl_ray_${COMP_WORDS[1]}_option_strings[*]
  _shtab_marl_ray
  [[ $word != -* || ${COMPREPLY[0]} == -* ]] || COMPREPLY=($(compgen -W "${!options}" -- "$word"))
  [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2> /dev/null
}
complete -o bashdefault -F _marl_ray marl-ray"""
# Outside of a new login shell nothing has loaded zsh's completion system.
START_OF_ZSH = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }\n"


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray completion",
        description="Print a script with which a shell completes commands, flags, settings and files.",
        epilog=EPILOG,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="shell that reads the script")
    return parser.run(lambda options: print(script(options.shell)), argv)


def script(shell: str) -> str:
    """Return the completion script of a shell."""
    import shtab

    text = shtab.complete(parser_of_all_commands(), shell)
    if shell == "bash":
        return text + WRAPPER_OF_BASH
    return START_OF_ZSH + text if shell == "zsh" else text


def parser_of_all_commands() -> argparse.ArgumentParser:
    """Return one parser with the commands as its subparsers, whose actions have shtab's attribute `complete`."""
    import shtab

    from marl_ray.cli.main import all_commands

    parser = argparse.ArgumentParser(prog="marl-ray", add_help=False)
    subparsers = parser.add_subparsers(parser_class=argparse.ArgumentParser)
    settings = _complete_settings()
    for name, command in all_commands().items():
        parent = _parser_of(command.module)
        for action in parent._actions:
            if "--override" in action.option_strings:
                action.complete = settings  # type: ignore[attr-defined]
            elif action.type is Path or action.metavar in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        subparsers.add_parser(name, help=command.summary, parents=[parent], add_help=False)
    return parser


def _parser_of(module: str) -> argparse.ArgumentParser:
    """Return the parser of a command, whose module builds it in `main`."""
    if module == SANDBOX:
        return sandbox_parser()
    try:
        importlib.import_module(module).main([DESCRIBE])
    except ParserDescription as description:
        return description.parser
    raise AssertionError(f"{module}.main does not parse its arguments")


def _complete_settings() -> dict[str, str | dict[str, str]]:
    """Return the completion of `--override` in shtab's form: a function per shell that prints the keys of settings."""
    from marl_ray.config.keys import settings

    keys = sorted({*settings("magrpo"), *settings("grpo")})
    words = " ".join(keys)
    function = "_marl_ray_settings"
    return {
        "bash": function,
        "zsh": function,
        "fish": f"(printf '%s=\\n' {words})",
        "preamble": {
            "bash": f'{function}() {{ compgen -S = -W {shlex.quote(words)} -- "$1"; }}',
            "zsh": f"{function}() {{ compadd -S = -- {words}; }}",
        },
    }
