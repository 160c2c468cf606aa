"""State of the test under evaluation that the test's own exception handlers cannot undo."""

from __future__ import annotations

from typing import Any

from ..protocol.messages import Status


class GuestFault(BaseException):
    """Failure of the guest process; `status` is "timeout" or "crash".

    A test cannot catch this error with `except Exception`. The judge also checks `GuestSession.fault`, in case a bare
    `except` caught it.
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
        self.reset()

    def reset(self, compares: bool = False) -> None:
        """Clear all flags for the next test."""
        self.refusal: str | None = None
        self.compares = compares
        self.operands: tuple[Any, ...] = ()
        self.untrusted = False

    def refuse(self, message: str) -> Refused:
        """Record a refusal and return the exception to raise."""
        if self.refusal is None:
            self.refusal = message
        return Refused(message)


CONTEXT = EvaluationContext()
"""Context of the current test. A judge evaluates one test at a time."""
