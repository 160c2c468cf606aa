"""What all commands share: how mistakes are said, and with which exit code."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from marl_ray.core.errors import UserError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130


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

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSED, f"error: {message} (--help shows what there is)\n")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`: did you mean X?`, or nothing where nothing is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f": did you mean {near[0]}?" if near else ""


def guarded(command: Callable[[], None]) -> int:
    """Run a command and return its exit code: 0; 1 for a UserError, in one line; 130 when it is stopped.

    Any other exception is a bug and goes through: Python shows its traceback and ends with 1.
    """
    try:
        command()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0
