"""Argument parser, flags and exit codes that commands share."""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from marl_ray.core.errors import Terminated, UserError
from marl_ray.core.extras import REQUIRED, explain_missing_modules
from marl_ray.core.stop_signals import StopSignals
from marl_ray.core.text import did_you_mean

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
MIN_PYTHON = (3, 11)  # as in setup.py


USED_OUTPUT = ("output.probe_helpers", "output.verbose")
"""Settings of the section `output` that matter without a training."""
DESCRIBE = "".join(["describe", " parser"])
"""Argument with which a command raises ParserDescription: this object itself, and no text of a command line."""


class ParserDescription(Exception):
    """The parser of a command, in answer to `DESCRIBE`."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """Argument parser that reports a mistake in one line and suggests the nearest flag."""

    def __init__(self, **settings: Any) -> None:
        self.flags: list[str] = []
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:  # type: ignore[override]
        self.flags += [name for name in names if name.startswith("--")]
        return super().add_argument(*names, **settings)

    def parse_args(self, args: Sequence[str] | None = None) -> argparse.Namespace:  # type: ignore[override]
        if args and args[0] is DESCRIBE:
            raise ParserDescription(self)
        options, unknown = self.parse_known_args(args)
        if unknown:
            flag = unknown[0].partition("=")[0]
            kind = "flag" if flag.startswith("-") else "argument"
            self.error(f"unknown {kind} {flag}{did_you_mean(flag, self.flags)}")
        return options

    def run(self, command: Callable[[argparse.Namespace], None], args: Sequence[str] | None) -> int:
        """Run a command with its options and return its exit code (`exit_code_of`)."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a locale such as POSIX has no signs beyond ASCII
                stream.reconfigure(errors="backslashreplace")
        options = self.parse_args(args)
        return exit_code_of(lambda: command(options))

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        flush()
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSED, f"error: {message} (see --help)\n")


def add_overrides(parser: Parser) -> None:
    parser.add_argument(
        "--override", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="settings, as section.key=value"
    )


def overrides_of(options: argparse.Namespace, flags: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Return the overrides of a command that trains nothing.

    `flags` has the flag of the command that a setting stands for. Raises UserError for settings about the files of a
    training.
    """
    from marl_ray.config import parse_overrides

    overrides = parse_overrides(options.override)
    for key in overrides:
        if key.startswith("output.") and key not in USED_OUTPUT:
            remedy = f"use {flags[key]}" if key in flags else "leave it out"
            raise UserError(f"{key} has no effect on this command: {remedy}")
    return overrides


def add_run_flags(parser: Parser) -> None:
    """Add the flags `--override`, `--quiet` and `--verbose`."""
    add_overrides(parser)
    add_verbosity(parser)


def add_verbosity(parser: Parser) -> None:
    """Add the flags `--quiet` and `--verbose`, which `configure_logging` reads."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--quiet", action="store_true", help="print only warnings and errors")
    group.add_argument("--verbose", action="store_true", help="print debug messages too")
    parser.flags += ["--quiet", "--verbose"]


def configure_logging(options: argparse.Namespace) -> None:
    """Print log records on standard error from the level that the flags select."""
    from marl_ray.telemetry import logs

    level = logging.INFO
    if options.quiet:
        level = logging.WARNING
    elif options.verbose:
        level = logging.DEBUG
    logs.configure(level)


def positive(text: str) -> int:
    """Convert an argument to a positive whole number."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def positive_number(text: str) -> float:
    """Convert an argument to a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def exit_code_of(command: Callable[[], None]) -> int:
    """Run a command and return its exit code: 0 on success, also if the reader of standard output has gone (`| head`);
    1 for a UserError, which is printed in one line; 128 plus the number of the signal that stopped the command (Ctrl-C
    130, SIGTERM 143, SIGHUP 129). Other exceptions propagate."""
    if sys.version_info < MIN_PYTHON:
        print(_wrong_python(f"is older than {MIN_PYTHON[0]}.{MIN_PYTHON[1]}"), file=sys.stderr)
        return FAILED
    if not _has_working_folder():
        print("error: the working folder has been deleted: change to an existing folder", file=sys.stderr)
        return FAILED
    try:
        with StopSignals(), explain_missing_modules():
            command()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except ModuleNotFoundError as error:
        if error.name not in REQUIRED:
            raise
        print(_wrong_python(f"has no module {error.name}"), file=sys.stderr)
        return FAILED
    except Terminated as error:
        return 128 + error.number
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        pass
    flush()
    return 0


def flush() -> None:
    """Flush standard output, and discard the rest if its reader has gone."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again at exit


def _has_working_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _wrong_python(problem: str) -> str:
    python = f"{sys.executable} (Python {'.'.join(map(str, sys.version_info[:3]))})"
    repair = "use .venv/bin/python, which install.sh creates (source .venv/bin/activate), or install the package"
    return f"error: {python} {problem}: {repair} for this Python"
