"""`marl-ray completion SHELL`: print a completion script, generated from the parsers of all commands."""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from marl_ray.cli.parser import DESCRIBE, Parser, ParserDescription
from marl_ray.sandbox.__main__ import sandbox_parser

EPILOG = """examples:
  marl-ray completion bash > ~/.local/share/bash-completion/completions/marl-ray
  echo 'source <(marl-ray completion bash)' >> ~/.bashrc
  echo 'source <(marl-ray completion zsh)' >> ~/.zshrc
  marl-ray completion fish > ~/.config/fish/completions/marl-ray.fish"""
SANDBOX = "marl_ray.sandbox.__main__"
FILES = ("FILE", "FOLDER", "RUN_DIR", "CONFIG", "MODEL")
"""Metavariables of arguments that are paths."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag or positional argument of a command: its names (none: positional), help and the form of its value."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    files: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommandSyntax:
    """A command, its summary and its arguments."""

    name: str
    summary: str
    flags: tuple[Flag, ...]

    @property
    def options(self) -> list[str]:
        """Names of all flags."""
        return [name for flag in self.flags for name in flag.names]

    @property
    def arguments(self) -> tuple[str, ...]:
        """Words that a positional argument can be."""
        return tuple(choice for flag in self.flags if not flag.names for choice in flag.choices)


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray completion",
        description="Print a script with which a shell completes commands, flags, settings and files.",
        epilog=EPILOG,
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="shell that reads the script")
    return parser.run(lambda options: print(SCRIPTS[options.shell](commands(), setting_keys())), argv)


def commands() -> list[CommandSyntax]:
    """Return the syntax of all commands."""
    from marl_ray.cli.main import all_commands

    found = []
    for name, command in all_commands().items():
        found.append(CommandSyntax(name, command.summary, tuple(_flags(_parser_of(command.module)))))
    return found


def setting_keys() -> list[str]:
    """Return the keys of all settings, for `--override`."""
    from marl_ray.config.keys import settings

    return sorted({key for algorithm in ("magrpo", "grpo") for key in settings(algorithm)})


def _parser_of(module: str) -> argparse.ArgumentParser:
    """Return the parser of a command, whose module builds it in `main`."""
    if module == SANDBOX:
        return sandbox_parser()
    try:
        importlib.import_module(module).main([DESCRIBE])
    except ParserDescription as found:
        return found.parser
    raise AssertionError(f"{module}.main does not parse its arguments")


def _flags(parser: argparse.ArgumentParser) -> Iterator[Flag]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        is_path = action.type is Path or action.metavar in FILES
        choices = tuple(map(str, action.choices)) if action.choices is not None else ()
        help = (action.help or "").replace("%%", "%")
        yield Flag(tuple(action.option_strings), help, action.nargs != 0, is_path, choices)


def bash(found: Sequence[CommandSyntax], keys: Sequence[str]) -> str:
    """Return the script for bash."""
    cases = []
    for command in found:
        values = [
            f"        {'|'.join(flag.names)}) {_bash_value(flag)} ;;"
            for flag in command.flags
            if flag.takes_value and flag.names
        ]
        words = " ".join([*command.options, *command.arguments])
        files = "yes" if any(flag.files and not flag.names for flag in command.flags) else ""
        cases += [
            f"    {command.name})",
            f"      words={shlex.quote(words)} files={files}",
            '      case "$flag" in',
            *values,
            "      esac ;;",
        ]
    return "\n".join(
        [
            "# Completion of marl-ray for bash, made by `marl-ray completion bash`.",
            "_marl_ray() {",
            '  local cur=${COMP_WORDS[COMP_CWORD]} flag="" words="" files="" index',
            "  COMPREPLY=()",
            "  if (( COMP_CWORD == 1 )); then",
            f'    COMPREPLY=($(compgen -W {shlex.quote(" ".join(c.name for c in found))} -- "$cur"))',
            "    return",
            "  fi",
            "  for (( index = COMP_CWORD - 1; index > 1; index-- )); do  # the last flag may have several values",
            '    case "${COMP_WORDS[index]}" in -*) flag=${COMP_WORDS[index]}; break ;; esac',
            "  done",
            '  case "${COMP_WORDS[1]}" in',
            *cases,
            "  esac",
            '  [[ "$cur" == -* || -z "$files" ]] || _marl_ray_files "$cur"',
            '  COMPREPLY+=($(compgen -W "$words" -- "$cur"))',
            "}",
            "_marl_ray_files() {",
            "  compopt -o filenames 2> /dev/null",
            '  COMPREPLY+=($(compgen -f -- "$1"))',
            "}",
            "_marl_ray_settings() {",
            '  [[ "$1" == -* ]] && return 1',
            "  compopt -o nospace 2> /dev/null",
            f'  COMPREPLY=($(compgen -S = -W {shlex.quote(" ".join(keys))} -- "$1"))',
            "}",
            "complete -F _marl_ray marl-ray",
        ]
    )


def _bash_value(flag: Flag) -> str:
    if "--override" in flag.names:
        return '_marl_ray_settings "$cur" && return'
    if flag.files:
        return '[[ "$cur" == -* ]] || { _marl_ray_files "$cur"; return; }'
    if flag.choices:
        choices = shlex.quote(" ".join(flag.choices))
        return f'[[ "$cur" == -* ]] || {{ COMPREPLY=($(compgen -W {choices} -- "$cur")); return; }}'
    return '[[ "$cur" == -* ]] || return'


def zsh(found: Sequence[CommandSyntax], keys: Sequence[str]) -> str:
    """Return the script for zsh, which runs the completion of bash."""
    return (
        "# Completion of marl-ray for zsh, made by `marl-ray completion zsh`.\n"
        "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }\n"
        "autoload -Uz bashcompinit && bashcompinit\n" + bash(found, keys)
    )


def fish(found: Sequence[CommandSyntax], keys: Sequence[str]) -> str:
    """Return the script for fish."""
    lines = ["# Completion of marl-ray for fish, made by `marl-ray completion fish`.", "complete -c marl-ray -f"]
    for command in found:
        lines.append(
            f"complete -c marl-ray -n __fish_use_subcommand -a {command.name} -d {_fish_text(command.summary)}"
        )
        condition = f"-n '__fish_seen_subcommand_from {command.name}'"
        for flag in command.flags:
            value = ["-r"] if flag.takes_value and flag.names else []
            value += ["-F"] if flag.files else []
            choices = [f"{key}=" for key in keys] if "--override" in flag.names else flag.choices
            value += [f"-a {_fish_text(' '.join(choices))}"] if choices else []
            names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names]
            if names or value:
                lines.append(" ".join(["complete -c marl-ray", condition, *names, *value, "-d", _fish_text(flag.help)]))
    return "\n".join(lines)


def _fish_text(text: str) -> str:
    return "'" + " ".join(text.split()).replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}
"""Generator of the script by shell."""
