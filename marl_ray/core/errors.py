"""The one kind of error that is a person's to mend; and the one way of being stopped that Python has no name for."""

from __future__ import annotations


class UserError(Exception):
    """The text is one line that says what to change. Whatever else ends a run is a bug, and shows its traceback."""

    def __init__(self, text: object) -> None:
        super().__init__(" ".join(str(text).split()))


class Terminated(KeyboardInterrupt):
    """SIGTERM came. Who does not ask which signal it was treats it like Ctrl-C."""
