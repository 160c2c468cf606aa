"""The error that a user can correct, and the exception for SIGTERM."""

from __future__ import annotations


class UserError(Exception):
    """An error whose text says what to change, on one line: line breaks and indentation of `text` become spaces. Any
    other exception is a bug with a traceback."""

    def __init__(self, text: object) -> None:
        super().__init__(" ".join(str(text).split()))


class Terminated(KeyboardInterrupt):
    """SIGTERM. Code that does not distinguish the two treats SIGTERM like Ctrl-C."""
