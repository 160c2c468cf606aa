"""What the judge keeps in mind of a test, whatever the test does with the exceptions it gets."""

from __future__ import annotations

from typing import Any

from ..protocol.records import Status


class GuestFault(BaseException):
    """The guest is beyond use: `status` is timeout or crash.

    Tests cannot catch it with `except Exception`, and the judge looks at `GuestSession.fault` in case they caught
    it with a bare `except`.
    """

    def __init__(self, status: Status, error_type: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type
        self.message = message


class Refused(TypeError):
    """A test asks something to which only the program has an answer, or hands it what cannot cross."""


class EvaluationContext:
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
        """Note a refusal; gives what to raise."""
        if self.refusal is None:
            self.refusal = message
        return Refused(message)


CONTEXT = EvaluationContext()
"""Of the test that is being evaluated: a judge has one at a time."""
