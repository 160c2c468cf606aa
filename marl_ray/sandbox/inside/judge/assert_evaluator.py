"""What a failed assert compared, in words: "got ..., expected ..."."""

from __future__ import annotations

import functools
import operator
import reprlib
from collections.abc import Callable
from typing import Any

from ..protocol.encoding import base_value
from ..protocol.subclass_types import origin_of, resolve_origin
from ..suites.suite import ALL, COMPARE, OPERATE, SAME, TRUTH
from .evaluation_context import CONTEXT
from .proxies import ProxyObject, describe, drained, provider_of
from .text import clean_text, text_of

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
_MOST_VALUES = 2000


class _Short(reprlib.Repr):
    """repr cut short, which asks nothing of the guest."""

    def __init__(self) -> None:
        super().__init__()
        self._left = _MOST_VALUES
        self.maxlevel = 6
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = self.maxdict = 20
        self.maxstring = self.maxother = self.maxlong = _VALUE_LENGTH

    def repr1(self, x: Any, level: int) -> str:
        self._left -= 1
        if self._left < 0:
            return "..."
        if isinstance(x, ProxyObject):
            return f"<{describe(x)}>"
        return super().repr1(x if origin_of(x) is None else base_value(x), level)

    def shortened(self, value: Any) -> str:
        """Lists in lists that are the same over and over are small in memory and endless to write."""
        self._left = _MOST_VALUES
        return self.repr(value)

    def repr_int(self, number: int, level: int) -> str:
        if number.bit_length() > 4000:
            return f"<int of {number.bit_length()} bits>"
        return super().repr_int(number, level)


_short = _Short()


def shorten(value: Any) -> str:
    """A value for a message, at most _VALUE_LENGTH characters."""
    try:
        text = _short.shortened(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _VALUE_LENGTH else text[: _VALUE_LENGTH - 3] + "..."


class AssertEvaluator:
    """Evaluates the tests of instrumented asserts and remembers the last that did not hold."""

    def __init__(self) -> None:
        self._last = ""

    def clear(self) -> None:
        self._last = ""

    def names(self) -> dict[str, Any]:
        """What instrumented tests call, and the builtins that have to know about handles."""
        own = {COMPARE: self.compare, TRUTH: self.truth, SAME: self.same, OPERATE: self.operate, ALL: drained}
        return own | {"isinstance": self.is_instance}

    def operate(self, name: str, left: Any, right: Any) -> Any:
        """An operator of an instance that the test has made: the program may be asked about these two."""
        if name == "sum":
            return functools.reduce(functools.partial(self.operate, "add"), drained(left), right)
        CONTEXT.operands = (left, right)
        try:
            return (_COMPARE.get(name) or getattr(operator, name))(left, right)
        finally:
            CONTEXT.operands = ()

    def compare(self, name: str, left: Any, right: Any, swapped: bool, made: bool = False) -> bool:
        """`left name right`. With `swapped` the value under test is on the right; with `made` see `operate`."""
        if made:
            holds = bool(self.operate(name, left, right))
        elif name in ("is", "is not"):
            holds = self.same(left, right) is (name == "is")
        else:
            holds = bool(_COMPARE[name](left, right))
        if not holds:
            got, wanted = (right, left) if swapped else (left, right)
            relation = "" if name == "==" else f"{name} "
            if swapped and name in ("in", "not in", "<", "<=", ">", ">="):
                self._last = f"{shorten(left)} {name} {shorten(right)} does not hold"
            else:
                self._last = f"got {shorten(got)}, expected {relation}{shorten(wanted)}"
        return holds

    def same(self, left: Any, right: Any) -> bool:
        """`left is right`, as it would be without two processes; refused where that cannot be known."""
        one_type = isinstance(left, type) is not isinstance(right, type)
        if one_type and (isinstance(left, ProxyObject) or isinstance(right, ProxyObject)):
            raise CONTEXT.refuse("classes of the program cannot be told apart outside its process")
        left, right = resolve_origin(left), resolve_origin(right)
        if isinstance(left, ProxyObject) and isinstance(right, ProxyObject):
            if not CONTEXT.compares:
                raise CONTEXT.refuse("only the program knows which of its objects are the same")
            CONTEXT.untrusted = True
        if left is right:
            return True
        if type(left) is type(right) and type(left) in _BY_VALUE and left == right:
            raise CONTEXT.refuse("whether two equal values are the same object is lost between two processes")
        return False

    def is_instance(self, value: Any, kinds: Any) -> bool:
        """isinstance; an object of the program's is asked about in its own process."""
        if not isinstance(value, ProxyObject):
            return isinstance(value, kinds)
        answer = provider_of(value).open_session().value("operate", "isinstance", values=[value, kinds])
        if type(answer) is not bool:
            raise CONTEXT.refuse(f"the type of {describe(value)} cannot be told")
        return answer

    def truth(self, value: Any, wanted: bool) -> bool:
        """Whether a value is as true as it should be."""
        outcome = bool(value) is wanted
        if not outcome:
            self._last = f"got {shorten(value)}, expected a {'true' if wanted else 'false'} value"
        return outcome

    def explain(self, error: AssertionError) -> str:
        """The message of a failed assertion: the test's own, then what was compared."""
        own = clean_text(text_of(error), 120)
        return ": ".join(part for part in (own, self._last) if part) or "assertion failed"
