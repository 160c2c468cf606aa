"""Values as tagged JSON: plain data only, exact builtin types on arrival.

A value crosses between judge and guest as JSON in which str, bool, None, float, small int and list stand for
themselves, and everything else is an object with one key, its tag. Subclasses of builtin types are reduced to
their base value, so that nothing a program defines (an `__eq__`, say) reaches the judge. What is not plain
data crosses as a reference, a number by which the guest finds its object again. `decode` trusts nothing:
whatever it is given, it returns a value of the types below or raises `ProtocolError`, in time and memory
proportional to the input.

| tag | value | payload |
|---|---|---|
| `i` | int beyond 62 bits | hexadecimal string |
| `u` | str with lone surrogates | hexadecimal UTF-8, surrogates passed |
| `t` `s` `z` | tuple, set, frozenset | list of values |
| `d` | dict | list of [key, value] |
| `b` `B` | bytes, bytearray | hexadecimal string |
| `c` | complex | [real, imaginary] |
| `r` | range, at most MAX_RANGE long | [start, stop, step], as strings |
| `D` `F` | Decimal, Fraction | string; [numerator, denominator] in hexadecimal |
| `dt` `da` `ti` `td` | datetime, date, time; timedelta | ISO string; [days, seconds, microseconds] |
| `q` | deque | list of values |
| `h` | a reference | [number or name, type name, is an iterator] |
"""

from __future__ import annotations

import datetime
import decimal
import fractions
from collections import deque
from collections.abc import Callable
from typing import Any

Wire = Any
"""JSON as `json.loads` returns it."""

MAX_DEPTH = 400
MAX_RANGE = 100_000
MAX_EXPONENT = 10_000
MAX_DIGITS = 20_000
"""Longer ranges and larger Decimals are small on the wire and unbounded in the judge's hands; making a
Fraction takes a division quadratic in its digits."""

_SMALL = 1 << 62


class Unsupported(Exception):
    """The value cannot cross: not plain data, too deep, or too long."""


class ProtocolError(Exception):
    """The wire form is not one that an honest encoder produces."""


Referrer = Callable[[Any], Wire]
"""Gives the payload of an `h` tag for an object that is not plain data, or raises Unsupported."""
Resolver = Callable[[Wire], Any]
"""Makes an object of the payload of an `h` tag, or raises ProtocolError."""


def no_references(value: Any) -> Any:
    """For conversations in which nothing but plain data may cross."""
    raise Unsupported(f"{type(value).__name__} is not plain data")


def encode(value: Any, refer: Referrer = no_references, depth: int = 0) -> Wire:
    """The wire form of a value."""
    kind = type(value)
    if kind is bool or value is None or kind is float:
        return value
    if kind is str:
        return value if value.isascii() else _encode_text(value)
    if kind is int:
        return value if -_SMALL < value < _SMALL else {"i": hex(value)}
    if depth >= MAX_DEPTH:
        raise Unsupported(f"nested deeper than {MAX_DEPTH}")
    encoder = _ENCODERS.get(kind)
    if encoder is not None:
        return encoder(value, refer, depth + 1)
    for base, reduce in _REDUCTIONS:
        if issubclass(kind, base):
            return encode(reduce(value), refer, depth)
    return {"h": refer(value)}


def _encode_text(value: str) -> Wire:
    """JSON would join two lone surrogates that stand side by side into one character."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"u": value.encode("utf-8", "surrogatepass").hex()}
    return value


def _items(value: Any, refer: Referrer, depth: int) -> list[Wire]:
    return [encode(item, refer, depth) for item in value]


def _encode_dict(value: dict[Any, Any], refer: Referrer, depth: int) -> Wire:
    return {"d": [[encode(key, refer, depth), encode(item, refer, depth)] for key, item in value.items()]}


def _encode_range(value: range, refer: Referrer, depth: int) -> Wire:
    bounds = [value.start, value.stop, value.step]
    if (value.stop - value.start) // value.step > MAX_RANGE:
        return {"h": refer(value)}
    return {"r": [hex(bound) for bound in bounds]}


def _encode_decimal(value: decimal.Decimal, refer: Referrer, depth: int) -> Wire:
    if value.is_finite() and abs(value.adjusted()) > MAX_EXPONENT:
        return {"h": refer(value)}
    return {"D": str(value)}


def _encode_datetime(tag: str) -> Callable[[Any, Referrer, int], Wire]:
    def encode_iso(value: Any, refer: Referrer, depth: int) -> Wire:
        if getattr(value, "tzinfo", None) is not None and type(value.tzinfo) is not datetime.timezone:
            return {"h": refer(value)}
        return {tag: value.isoformat()}

    return encode_iso


_ENCODERS: dict[type, Callable[[Any, Referrer, int], Wire]] = {
    list: _items,
    tuple: lambda value, refer, depth: {"t": _items(value, refer, depth)},
    dict: _encode_dict,
    set: lambda value, refer, depth: {"s": _items(value, refer, depth)},
    frozenset: lambda value, refer, depth: {"z": _items(value, refer, depth)},
    bytes: lambda value, refer, depth: {"b": value.hex()},
    bytearray: lambda value, refer, depth: {"B": value.hex()},
    complex: lambda value, refer, depth: {"c": [value.real, value.imag]},
    range: _encode_range,
    deque: lambda value, refer, depth: {"q": _items(value, refer, depth)},
    decimal.Decimal: _encode_decimal,
    fractions.Fraction: lambda value, refer, depth: {"F": [hex(value.numerator), hex(value.denominator)]},
    datetime.datetime: _encode_datetime("dt"),
    datetime.date: _encode_datetime("da"),
    datetime.time: _encode_datetime("ti"),
    datetime.timedelta: lambda value, refer, depth: {"td": [value.days, value.seconds, value.microseconds]},
}

_REDUCTIONS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (str, str.__str__),
    (tuple, lambda value: tuple(tuple.__iter__(value))),
    (list, lambda value: list(list.__iter__(value))),
    (dict, lambda value: dict(dict.items(value))),
    (set, lambda value: set(set.__iter__(value))),
    (frozenset, lambda value: frozenset(frozenset.__iter__(value))),
    (bytes, lambda value: bytes.join(b"", [value])),
    (bytearray, lambda value: bytearray(bytes(memoryview(value)))),
    (deque, lambda value: deque(deque.__iter__(value))),
)
"""Subclass -> base value, by the base's own methods: those of the subclass may do or return anything."""


def no_resolver(payload: Wire) -> Any:
    """For conversations in which nothing but plain data may cross."""
    raise ProtocolError("unexpected reference")


def decode(wire: Wire, resolve: Resolver = no_resolver) -> Any:
    """The value of a wire form. ProtocolError for anything an honest encoder would not have sent."""
    try:
        return _decode(wire, resolve, 0)
    except ProtocolError:
        raise
    # What constructors raise for payloads of a wrong type, form or size, and unhashable keys.
    except (ValueError, TypeError, ArithmeticError, AttributeError, LookupError, RecursionError) as error:
        raise ProtocolError(f"malformed value ({type(error).__name__})") from None


def _decode(wire: Wire, resolve: Resolver, depth: int) -> Any:
    kind = type(wire)
    if kind is list:
        if depth > MAX_DEPTH:
            raise ProtocolError("value nested too deeply")
        return [_decode(item, resolve, depth + 1) for item in wire]
    if kind is not dict:
        return wire
    if depth > MAX_DEPTH or len(wire) != 1:
        raise ProtocolError("value nested too deeply" if len(wire) == 1 else "malformed tag")
    ((tag, payload),) = wire.items()
    if tag == "h":
        return resolve(payload)
    decoder = _DECODERS.get(tag)
    if decoder is None:
        raise ProtocolError("unknown tag")
    expected, build = decoder
    if type(payload) is not expected:
        raise ProtocolError("malformed tag")
    return build(payload, resolve, depth + 1)


def _values(payload: list[Wire], resolve: Resolver, depth: int) -> list[Any]:
    return [_decode(item, resolve, depth) for item in payload]


def _decode_set(payload: list[Wire], resolve: Resolver, depth: int) -> set[Any]:
    """Item by item, so that the judge's timer can interrupt it: hashes that all collide take quadratic time."""
    return {_decode(item, resolve, depth) for item in payload}


def _decode_dict(payload: list[Wire], resolve: Resolver, depth: int) -> dict[Any, Any]:
    return {_decode(key, resolve, depth): _decode(item, resolve, depth) for key, item in payload}


def _decode_range(payload: list[Wire], resolve: Resolver, depth: int) -> range:
    start, stop, step = (int(bound, 16) for bound in payload)
    if (stop - start) // step > MAX_RANGE:
        raise ProtocolError("range too long")
    return range(start, stop, step)


def _decode_decimal(payload: str, resolve: Resolver, depth: int) -> decimal.Decimal:
    if len(payload) > MAX_DIGITS:
        raise ProtocolError("decimal too long")
    value = decimal.Decimal(payload)
    if value.is_finite() and abs(value.adjusted()) > MAX_EXPONENT:
        raise ProtocolError("decimal exponent too large")
    return value


def _decode_fraction(payload: list[Wire], resolve: Resolver, depth: int) -> fractions.Fraction:
    numerator, denominator = payload
    if len(numerator) > MAX_DIGITS or len(denominator) > MAX_DIGITS:
        raise ProtocolError("fraction too long")
    return fractions.Fraction(int(numerator, 16), int(denominator, 16))


def _decode_timedelta(payload: list[Wire], resolve: Resolver, depth: int) -> datetime.timedelta:
    days, seconds, microseconds = (_exactly(int, item) for item in payload)
    return datetime.timedelta(days, seconds, microseconds)


def _decode_complex(payload: list[Wire], resolve: Resolver, depth: int) -> complex:
    real, imaginary = (_exactly(float, item) for item in payload)
    return complex(real, imaginary)


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ProtocolError("malformed tag")
    return value


_DECODERS: dict[str, tuple[type, Callable[[Any, Resolver, int], Any]]] = {
    "i": (str, lambda payload, resolve, depth: int(payload, 16)),
    "u": (str, lambda payload, resolve, depth: bytes.fromhex(payload).decode("utf-8", "surrogatepass")),
    "t": (list, lambda payload, resolve, depth: tuple(_values(payload, resolve, depth))),
    "d": (list, _decode_dict),
    "s": (list, lambda payload, resolve, depth: _decode_set(payload, resolve, depth)),
    "z": (list, lambda payload, resolve, depth: frozenset(_decode_set(payload, resolve, depth))),
    "b": (str, lambda payload, resolve, depth: bytes.fromhex(payload)),
    "B": (str, lambda payload, resolve, depth: bytearray.fromhex(payload)),
    "c": (list, _decode_complex),
    "r": (list, _decode_range),
    "D": (str, _decode_decimal),
    "F": (list, _decode_fraction),
    "dt": (str, lambda payload, resolve, depth: datetime.datetime.fromisoformat(payload)),
    "da": (str, lambda payload, resolve, depth: datetime.date.fromisoformat(payload)),
    "ti": (str, lambda payload, resolve, depth: datetime.time.fromisoformat(payload)),
    "td": (list, _decode_timedelta),
    "q": (list, lambda payload, resolve, depth: deque(_values(payload, resolve, depth))),
}
