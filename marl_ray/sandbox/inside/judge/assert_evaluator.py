"""Evaluation of instrumented asserts, with failure messages "got ..., expected ..."."""

from __future__ import annotations

import functools
import operator
import reprlib
from collections.abc import Callable
from typing import Any

from ..protocol.encoding import base_value
from ..protocol.references import origin_of, resolve_origin
from ..suites.suite import ALL, ASKED, COMPARE, OPERATE, SAME, TRUTH
from .evaluation_context import CONTEXT
from .proxies import ProxyObject, describe, fetch_items, session_of
from .remote_errors import clean_text, exception_text

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda left, right: left in right,
    "not in": lambda left, right: left not in right,
}
_BY_VALUE = (int, float, complex, str, bytes, tuple, frozenset, range)
_VALUE_LENGTH = 160
_MAX_VALUES = 2000


class _ShortRepr(reprlib.Repr):
    """Bounded repr that sends no request to the guest."""

    def __init__(self) -> None:
        super().__init__()
        # Bounded, since nested references to one list are small but endless.
        self._remaining = _MAX_VALUES
        self.maxlevel = 6
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = self.maxdict = 20
        self.maxstring = self.maxother = self.maxlong = _VALUE_LENGTH

    def repr1(self, x: Any, level: int) -> str:
        self._remaining -= 1
        if self._remaining < 0:
            return "..."
        if isinstance(x, ProxyObject):
            return f"<{describe(type(x))}>"
        if origin_of(x) is not None:
            x = base_value(x)
        return super().repr1(x, level)

    def repr_int(self, number: int, level: int) -> str:
        if number.bit_length() > 4000:
            return f"<int of {number.bit_length()} bits>"
        return super().repr_int(number, level)


def shorten(value: Any) -> str:
    """Return the repr of a value, at most _VALUE_LENGTH characters."""
    try:
        text = _ShortRepr().repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _VALUE_LENGTH else text[: _VALUE_LENGTH - 3] + "..."


class AssertEvaluator:
    """Functions that instrumented asserts call; records the message of the last comparison that did not hold."""

    def __init__(self) -> None:
        self.last_message = ""

    def names(self) -> dict[str, Any]:
        """Return the globals that instrumented tests need, including builtins that must know about proxies."""
        instrumented = {COMPARE: self.compare, TRUTH: self.truth, SAME: self.same, OPERATE: self.operate}
        return instrumented | {ALL: fetch_items, ASKED: self.asked, "isinstance": self.is_instance}

    def asked(self, value: Any) -> Any:
        """Return a value with which the program decides the verdict."""
        CONTEXT.untrusted = True
        return value

    def operate(self, name: str, left: Any, right: Any) -> Any:
        """Evaluate an operator of an instance that the test made, and let the program be asked about both operands."""
        if name == "sum":
            return functools.reduce(functools.partial(self.operate, "add"), fetch_items(left), right)
        CONTEXT.operands = (left, right)
        try:
            return (_COMPARE.get(name) or getattr(operator, name))(left, right)
        finally:
            CONTEXT.operands = ()

    def compare(self, name: str, left: Any, right: Any, swapped: bool, made: bool = False) -> bool:
        """Evaluate `left name right`. `swapped`: the value under test is on the right. `made`: see `operate`."""
        if made:
            result = bool(self.operate(name, left, right))
        elif name in ("is", "is not"):
            result = self.same(left, right) is (name == "is")
        else:
            result = bool(_COMPARE[name](left, right))
        if not result and swapped and name in ("in", "not in", "<", "<=", ">", ">="):
            self.last_message = f"{shorten(left)} {name} {shorten(right)} does not hold"
        elif not result:
            got, expected = (right, left) if swapped else (left, right)
            relation = "" if name == "==" else f"{name} "
            self.last_message = f"got {shorten(got)}, expected {relation}{shorten(expected)}"
        return result

    def same(self, left: Any, right: Any) -> bool:
        """Evaluate `left is right` as in one process. Raises Refused where the answer cannot be known."""
        only_one_is_type = isinstance(left, type) is not isinstance(right, type)
        if only_one_is_type and (isinstance(left, ProxyObject) or isinstance(right, ProxyObject)):
            raise CONTEXT.refuse("classes of the program cannot be told apart outside its process")
        left = resolve_origin(left)
        right = resolve_origin(right)
        if isinstance(left, ProxyObject) and isinstance(right, ProxyObject):
            if not CONTEXT.compares:
                raise CONTEXT.refuse("only the program knows which of its objects are the same")
            CONTEXT.untrusted = True
            return left is right or bool(session_of(left).fetch("operate", "is_", values=[left, right]))
        if left is right:
            return True
        # Literals such as `()` and small integers are one object in CPython, and two in two processes.
        if type(left) is type(right) and type(left) in _BY_VALUE and left == right:
            raise CONTEXT.refuse("whether two equal values are the same object is lost between two processes")
        return False

    def is_instance(self, value: Any, kinds: Any) -> bool:
        """Evaluate `isinstance`, for an object of the program in its own process."""
        if not isinstance(value, ProxyObject):
            return isinstance(value, kinds)
        answer = session_of(value).fetch("operate", "isinstance", values=[value, kinds])
        if type(answer) is not bool:
            raise CONTEXT.refuse(f"the type of {describe(type(value))} cannot be told")
        return answer

    def truth(self, value: Any, expected: bool) -> bool:
        outcome = bool(value) is expected
        if not outcome:
            self.last_message = f"got {shorten(value)}, expected a {str(expected).lower()} value"
        return outcome

    def explain(self, error: AssertionError) -> str:
        """Return the message of a failed assertion: the test's own message, then the comparison."""
        own = clean_text(exception_text(error), 120)
        return ": ".join(filter(None, (own, self.last_message))) or "assertion failed"
