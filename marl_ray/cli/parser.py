"""What all commands share: how mistakes are said, and with which exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from marl_ray.core.errors import Terminated, UserError
from marl_ray.core.text import did_you_mean

FAILED, MISUSED, INTERRUPTED, TERMINATED = 1, 2, 130, 143
OLDEST = (3, 11)
"""Python, as in setup.py."""
NEEDED = (
    "torch",
    "transformers",
    "numpy",
    "ray",
    "datasets",
    "yaml",
    "matplotlib",
    "openai",
    "anthropic",
    "httpx2",
    "tqdm",
)
"""Modules of setup.py's requirements."""


class Parser(argparse.ArgumentParser):
    """A mistake is one line, and names the flag that was most likely meant."""

    def __init__(self, **settings: Any) -> None:
        self._flags: list[str] = []
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:  # type: ignore[override]
        self._flags += [name for name in names if name.startswith("--")]
        return super().add_argument(*names, **settings)

    def parse_args(self, args: Sequence[str] | None = None) -> argparse.Namespace:  # type: ignore[override]
        """The options. Ends the program with code 2 for what it does not know."""
        options, unknown = self.parse_known_args(args)
        if unknown:
            flag = unknown[0].partition("=")[0]
            what = "flag" if flag.startswith("-") else "argument"
            self.error(f"unknown {what} {flag}{did_you_mean(flag, self._flags)}")
        return options

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        flush()
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSED, f"error: {message} (--help shows what there is)\n")


def add_quiet(parser: Parser) -> None:
    """The flag `--quiet`."""
    parser.add_argument("--quiet", action="store_true", help="say nothing but warnings and errors")


def exit_code_of(command: Callable[[], None]) -> int:
    """Run a command and return its exit code: 0, also when nobody reads on (`| head`); 1 for a UserError, in one line;
    130 when Ctrl-C stopped it, 143 when SIGTERM did.

    Any other exception is a bug and goes through: Python shows its traceback and ends with 1.
    """
    if sys.version_info < OLDEST:
        print(_wrong_python(f"is older than {OLDEST[0]}.{OLDEST[1]}"), file=sys.stderr)
        return FAILED
    try:
        command()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        print(_wrong_python(f"has no module {error.name}"), file=sys.stderr)
        return FAILED
    except Terminated:
        return TERMINATED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        pass
    flush()
    return 0


def flush() -> None:
    """Write out what was printed, whether or not somebody still reads it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end


def _wrong_python(why: str) -> str:
    """What to say where the Python that runs is not the one that the package was installed for."""
    version = ".".join(map(str, sys.version_info[:3]))
    return (
        f"error: {sys.executable} (Python {version}) {why}: run .venv/bin/python, which install.sh makes (source "
        ".venv/bin/activate), or install the package for this one"
    )
