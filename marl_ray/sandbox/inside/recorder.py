"""What a failed assert compared, in words: "got ..., expected ..."."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable
from typing import Any

from .remote import Handle, clean_text, describe

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "is": operator.is_,
    "is not": operator.is_not,
    "in": lambda left, right: left in right,
    "not in": lambda left, right: left not in right,
}
_VALUE_LENGTH = 160


class _Short(reprlib.Repr):
    """repr cut short, which asks nothing of the guest."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 6
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = self.maxdict = 20
        self.maxstring = self.maxother = self.maxlong = _VALUE_LENGTH

    def repr_Handle(self, handle: Handle, level: int) -> str:
        return f"<{describe(handle)}>"

    def repr_int(self, number: int, level: int) -> str:
        if number.bit_length() > 4000:
            return f"<int of {number.bit_length()} bits>"
        return super().repr_int(number, level)


_short = _Short()


def shorten(value: Any) -> str:
    """A value for a message, at most _VALUE_LENGTH characters."""
    try:
        text = _short.repr(value)
    except (ValueError, TypeError, RecursionError):
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _VALUE_LENGTH else text[: _VALUE_LENGTH - 3] + "..."


class Recorder:
    """Evaluates the tests of instrumented asserts and remembers the last that did not hold."""

    def __init__(self) -> None:
        self._last = ""

    def clear(self) -> None:
        self._last = ""

    def compare(self, name: str, left: Any, right: Any, swapped: bool) -> Any:
        """`left name right`. With `swapped` the value under test is on the right."""
        outcome = _COMPARE[name](left, right)
        if not outcome:
            got, wanted = (right, left) if swapped else (left, right)
            relation = "" if name == "==" else f"{name} "
            if swapped and name in ("in", "not in", "<", "<=", ">", ">="):
                self._last = f"{shorten(left)} {name} {shorten(right)} does not hold"
            else:
                self._last = f"got {shorten(got)}, expected {relation}{shorten(wanted)}"
        return outcome

    def truth(self, value: Any, wanted: bool) -> bool:
        """Whether a value is as true as it should be."""
        outcome = bool(value) is wanted
        if not outcome:
            self._last = f"got {shorten(value)}, expected a {'true' if wanted else 'false'} value"
        return outcome

    def explain(self, error: AssertionError) -> str:
        """The message of a failed assertion: the test's own, then what was compared."""
        own = clean_text(str(error), 120)
        return ": ".join(part for part in (own, self._last) if part) or "assertion failed"
