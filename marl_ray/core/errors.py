"""The errors that a user can correct, and the exception for a signal that stops a command."""

from __future__ import annotations

import signal


class UserError(Exception):
    """An error whose text says what to change, on one line: line breaks and indentation of `text` become spaces. Any
    other exception is a bug with a traceback."""

    def __init__(self, text: object) -> None:
        super().__init__(" ".join(str(text).split()))


class RejectedMessages(UserError):
    """Messages that the chat template of a model rejects."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP. Code that does not distinguish them treats both like Ctrl-C."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__()
        self.number = number
