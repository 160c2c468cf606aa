"""Encoding of values between judge and guest as tagged JSON; docs/explanation/sandbox.md lists the tags.

For an instance of a subclass of a builtin type, only the base value and the class name cross, so nothing that a program
defines (such as an `__eq__`) reaches the judge.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

from . import arrays
from .references import are_fields, named_tuple, subclass

Wire = Any
"""JSON as `json.loads` returns it."""
MAX_DEPTH = 400
MAX_RANGE = 100_000
MAX_EXPONENT = 10_000
MAX_DIGITS = 20_000
"""Bounds on values that are small when encoded: iterating a longer range or converting a larger Decimal would be
unbounded in the judge, and building a Fraction takes a division that is quadratic in its digits."""
_SMALL = 1 << 62


class UnsupportedValue(Exception):
    """A value that cannot be encoded: not plain data, too deep, or too long."""


class ProtocolError(Exception):
    """Input that the encoder of this module never produces."""


class CodecContext:
    """Encoding and decoding of references and shared objects. This base class allows plain data only."""

    subclass = staticmethod(subclass)
    named_tuple = staticmethod(named_tuple)
    longest_range_sent = longest_range_received = MAX_RANGE

    def encode_reference(self, value: Any) -> Wire:
        """Encode an object that is not plain data. Raises UnsupportedValue."""
        raise UnsupportedValue(f"{type(value).__name__} is not plain data")

    def origin_reference(self, value: Any) -> Wire:
        """Return a reference to the object whose base value crosses, for requests on the object itself; or None."""
        return None

    def overridden_methods(self, kind: type, base: type) -> int:
        """Return the mask of special methods that a subclass overrides."""
        return 0

    def encode_origin(self, value: Any) -> Wire:
        """Encode the reference to the peer's object whose base value this is; None without such an object."""
        return None

    def resolve_reference(self, payload: Wire) -> Any:
        """Return the object of an `h` tag."""
        raise ProtocolError("unexpected reference")

    def attach_origin(self, value: Any, origin: Wire) -> None:
        """Attach the reference that came with an instance of a subclass."""
        if origin is not None:
            raise ProtocolError("unexpected reference")

    def resolve_name(self, name: str) -> Any:
        """Return the object of an `n` tag."""
        raise ProtocolError("unexpected name")

    def build_exception(self, name: Wire, arguments: list[Any]) -> Any:
        """Return the exception of an `e` tag."""
        raise ProtocolError("unexpected exception")

    def shared_number(self, value: Any) -> int | None:
        """Return the number of a shared object; register an unknown object and return None."""
        return None

    def register(self, value: Any) -> None:
        """Number an object that was just created."""

    def resolve_shared(self, number: Wire) -> Any:
        """Return the shared object with a number."""
        raise ProtocolError("unexpected number")


PLAIN = CodecContext()
Encoder = Callable[[Any, CodecContext, int], Wire]


def encode(value: Any, context: CodecContext = PLAIN, depth: int = 0) -> Wire:
    """Encode a value. Raises UnsupportedValue."""
    # The exact type decides: an instance of a subclass may claim to be anything. Frequent types come first.
    kind = type(value)
    if kind is bool or value is None:
        return value
    if kind is float:
        return value if value == value else _encode_nan(value, context)
    if kind is str:
        return value if value.isascii() else _encode_text(value)
    if kind is int:
        # Decimal digits of a long integer take quadratic time, and CPython refuses more than 4300 of them.
        return value if -_SMALL < value < _SMALL else {"i": hex(value)}
    if depth >= MAX_DEPTH:
        raise UnsupportedValue(f"nested deeper than {MAX_DEPTH}")
    if kind in MUTABLE:
        # Numbered before its items, which may refer back to it.
        number = context.shared_number(value)
        if number is not None:
            return {"@": number}
    encoder = _ENCODERS.get(kind)
    if encoder is not None:
        return encoder(value, context, depth + 1)
    if arrays.is_scalar(value):
        return {"ns": arrays.encode_array(value)}
    if arrays.is_array(value):
        number = context.shared_number(value)
        return {"na": arrays.encode_array(value)} if number is None else {"@": number}
    for base, reduce in _REDUCTIONS:
        if issubclass(kind, base):
            return _encode_subclass(value, base, reduce, context, depth)
    return context.encode_reference(value)


def _encode_text(value: str) -> Wire:
    """Encode text with lone surrogates as hexadecimal: JSON would join two adjacent surrogates into one character."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"u": value.encode("utf-8", "surrogatepass").hex()}
    return value


def _encode_nan(value: float, context: CodecContext) -> Wire:
    """Encode a NaN as a shared object, like mutable values: lists that hold the same NaN object are equal."""
    if value is math.nan:
        return {"x": True}
    number = context.shared_number(value)
    return {"x": False} if number is None else {"@": number}


def _encode_subclass(value: Any, base: type, reduce: Callable[[Any], Any], context: CodecContext, depth: int) -> Wire:
    original = context.encode_origin(value)
    if original is not None:
        return original
    if base in MUTABLE:
        number = context.shared_number(value)
        if number is not None:
            return {"@": number}
    kind = type(value)
    origin = context.origin_reference(value)
    overridden = context.overridden_methods(kind, base)
    fields: Any = None
    if base is tuple:
        fields = getattr(kind, "_fields", None)
    if are_fields(fields):
        values = reduce(value)
        if len(values) == len(fields):
            return {"N": [kind.__name__, list(fields), _items(values, context, depth + 1), overridden, origin]}
    return {"S": [kind.__name__, _ENCODERS_OF_BASES[base](reduce(value), context, depth + 1), overridden, origin]}


def _items(value: Any, context: CodecContext, depth: int) -> list[Wire]:
    return [encode(item, context, depth) for item in value]


def _pairs(items: Iterable[tuple[Any, Any]], context: CodecContext, depth: int) -> list[Wire]:
    return [[encode(key, context, depth), encode(item, context, depth)] for key, item in items]


def _encode_range(value: range, context: CodecContext, depth: int) -> Wire:
    # `len` raises OverflowError for a range longer than a machine word.
    if (value.stop - value.start) // value.step > context.longest_range_sent:
        return context.encode_reference(value)
    return {"r": [hex(bound) for bound in (value.start, value.stop, value.step)]}


def _encode_decimal(value: decimal.Decimal, context: CodecContext, depth: int) -> Wire:
    if value.is_finite() and abs(value.adjusted()) > MAX_EXPONENT:
        return context.encode_reference(value)
    return {"D": str(value)}


def _encode_datetime(tag: str) -> Encoder:
    def encode_iso(value: Any, context: CodecContext, depth: int) -> Wire:
        # Any other class of time zones may be the program's, whose methods comparisons would call.
        if getattr(value, "tzinfo", None) is not None and type(value.tzinfo) is not datetime.timezone:
            return context.encode_reference(value)
        return {tag: value.isoformat()}

    return encode_iso


def _encode_memoryview(value: memoryview, context: CodecContext, depth: int) -> Wire:
    if value.format != "B" or value.ndim != 1:
        return context.encode_reference(value)
    return {"m": value.tobytes().hex()}


def _encode_keys(value: Any, context: CodecContext, depth: int) -> Wire:
    return {"k": _items(value, context, depth)}


def _encode_values(value: Any, context: CodecContext, depth: int) -> Wire:
    return {"v": _items(value, context, depth)}


def _encode_pairs(value: Any, context: CodecContext, depth: int) -> Wire:
    return {"p": _pairs(value, context, depth)}


_ENCODERS: dict[type, Encoder] = {
    memoryview: _encode_memoryview,
    **dict.fromkeys((type({}.keys()), type(OrderedDict().keys())), _encode_keys),
    **dict.fromkeys((type({}.values()), type(OrderedDict().values())), _encode_values),
    **dict.fromkeys((type({}.items()), type(OrderedDict().items())), _encode_pairs),
    list: _items,
    tuple: lambda value, context, depth: {"t": _items(value, context, depth)},
    dict: lambda value, context, depth: {"d": _pairs(value.items(), context, depth)},
    set: lambda value, context, depth: {"s": _items(value, context, depth)},
    frozenset: lambda value, context, depth: {"z": _items(value, context, depth)},
    bytes: lambda value, context, depth: {"b": value.hex()},
    bytearray: lambda value, context, depth: {"B": value.hex()},
    complex: lambda value, context, depth: {"c": [value.real, value.imag]},
    range: _encode_range,
    deque: lambda value, context, depth: {"q": [_items(value, context, depth), value.maxlen]},
    Counter: lambda value, context, depth: {"C": _pairs(value.items(), context, depth)},
    OrderedDict: lambda value, context, depth: {"O": _pairs(value.items(), context, depth)},
    defaultdict: lambda value, context, depth: {
        "f": [encode(value.default_factory, context, depth), _pairs(value.items(), context, depth)]
    },
    decimal.Decimal: _encode_decimal,
    fractions.Fraction: lambda value, context, depth: {"F": [hex(value.numerator), hex(value.denominator)]},
    datetime.datetime: _encode_datetime("dt"),
    datetime.date: _encode_datetime("da"),
    datetime.time: _encode_datetime("ti"),
    slice: lambda value, context, depth: {"sl": _items((value.start, value.stop, value.step), context, depth)},
    datetime.timedelta: lambda value, context, depth: {"td": [value.days, value.seconds, value.microseconds]},
}
MUTABLE = frozenset((list, dict, set, bytearray, deque, Counter, OrderedDict, defaultdict))
_REDUCTIONS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (str, str.__str__),
    (tuple, lambda value: tuple(tuple.__iter__(value))),
    (list, lambda value: list(list.__iter__(value))),
    (Counter, lambda value: dict(dict.items(value))),
    (OrderedDict, lambda value: dict(OrderedDict.items(value))),
    (dict, lambda value: dict(dict.items(value))),
    (set, lambda value: set(set.__iter__(value))),
    (frozenset, lambda value: frozenset(frozenset.__iter__(value))),
    (bytes, lambda value: bytes.join(b"", [value])),
    (bytearray, lambda value: bytearray(bytes(memoryview(value)))),
    (deque, lambda value: deque(deque.__iter__(value))),
)
"""Conversions of a subclass's instance to its base value by methods of the base; the subclass's may do anything."""


def base_value(value: Any) -> Any:
    """Return the base value of an instance of a subclass."""
    for base, reduce in _REDUCTIONS:
        if isinstance(value, base):
            return reduce(value)
    return value


_ENCODERS_OF_BASES: dict[type, Encoder] = {**_ENCODERS, int: encode, float: encode, str: encode}
_CONTAINERS = dict.fromkeys((OrderedDict, dict, list, set, bytearray, deque))


def base_of(value: Any) -> Any:
    """Return the builtin class by whose methods to read and write a container; None for other values."""
    kind = type(value)
    if kind in _CONTAINERS or arrays.is_array(value):
        return kind
    for base in _CONTAINERS:
        if issubclass(kind, base):
            return base
    return None


def contents(value: Any, context: CodecContext) -> Wire:
    """Encode the contents of a container for `decoding.fill`."""
    base = base_of(value)
    if base is bytearray:
        return bytes(memoryview(value)).hex()
    if arrays.is_array(value):
        return arrays.encode_array(value)
    if base in (dict, OrderedDict):
        return _pairs(list(base.items(value)), context, 1)
    return _items(list(base.__iter__(value)), context, 1)
