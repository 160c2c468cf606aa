"""What the judge keeps in mind of a test, whatever the test does with the exceptions it gets."""

from __future__ import annotations

from typing import Any


class Fault(BaseException):
    """The guest is beyond use: `status` is timeout or crash.

    Tests cannot catch it with `except Exception`, and the judge looks at `Session.fault` in case they caught
    it with a bare `except`.
    """

    def __init__(self, status: str, error_type: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type
        self.message = message


class Refused(TypeError):
    """A test asks something to which only the program has an answer, or hands it what cannot cross."""


class Notes:
    """Of one test.

    `refusal`: the first thing that was refused; such a test cannot pass, even if it catches `Refused`.
    `compares`: the test compares the program's objects with each other, so that the program may be asked.
    `operands`: of the operator that is being evaluated, if it is one about which the program may be asked.
    `untrusted`: the program has been asked.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self, compares: bool = False) -> None:
        """Another test begins."""
        self.refusal: str | None = None
        self.compares = compares
        self.operands: tuple[Any, ...] = ()
        self.untrusted = False

    def refuse(self, message: str) -> Refused:
        """Note a refusal. -> what to raise."""
        if self.refusal is None:
            self.refusal = message
        return Refused(message)


NOTES = Notes()
"""Of the test that is being evaluated: a judge has one at a time."""


def clean_text(text: Any, limit: int = 500) -> str:
    """Guest text fit for logs and prompts: no surrogates, no control or escape characters, bounded."""
    if not isinstance(text, str):
        return ""
    text = text[:limit].encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def text_of(error: BaseException) -> str:
    """What an exception says; nothing if it cannot (its arguments may be objects of the program, which may answer with
    any exception).
    """
    try:
        return str(error)
    except Fault:
        raise
    except BaseException:
        return ""


def clean_line(line: Any) -> int | None:
    return line if type(line) is int and 0 < line < 1 << 31 else None
