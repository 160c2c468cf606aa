"""State of the test under evaluation that the test's own exception handlers cannot undo."""

from __future__ import annotations

from typing import Any

from ..protocol.messages import Status


class GuestFault(BaseException):
    """Failure of the guest process; `status` is "timeout" or "crash".

    `except Exception` in a test does not catch it, and after a bare `except` the judge still finds
    `GuestSession.fault`.
    """

    def __init__(self, status: Status, error_type: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type
        self.message = message


class Refused(TypeError):
    """Error of an operation that only the program could answer, or of a value that cannot be sent to the program."""


class EvaluationContext:
    """Flags of one test.

    - `refusal`: the first refused operation. The test cannot pass, even if it catches `Refused`.
    - `compares`: the test compares objects of the program with each other, so the program may be asked to.
    - `operands`: operands of the current operator, if the program may be asked to evaluate that operator.
    - `untrusted`: the program was asked, so the verdict depends on its answer.
    """

    def __init__(self) -> None:
        self.reset(compares=False)

    def reset(self, compares: bool) -> None:
        """Clear all flags for the next test."""
        self.refusal: str | None = None
        self.compares = compares
        self.operands: tuple[Any, ...] = ()
        self.untrusted = False

    def refuse(self, message: str) -> Refused:
        """Record a refusal and return the exception to raise."""
        self.refusal = self.refusal or message
        return Refused(message)


CONTEXT = EvaluationContext()
"""Context of the current test. A judge evaluates one test at a time."""
