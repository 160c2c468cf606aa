"""One value of one setting: what a person writes, as the setting's type."""

from __future__ import annotations

import collections.abc
import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

from marl_ray.core.errors import UserError

BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
NO_TEXT = re.compile("[\0\ud800-\udfff]")
"""What no file, path or model takes."""
NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}


@dataclass(frozen=True, slots=True)
class Bound:
    """What a number has to be, in words too."""

    holds: Callable[[float], bool]
    says: str


_ABOVE_0 = Bound(lambda value: value > 0, "be above 0")
_NOT_NEGATIVE = Bound(lambda value: value >= 0, "not be negative")
_AT_MOST_1 = Bound(lambda value: value <= 1, "be at most 1")
_AT_LEAST_1 = Bound(lambda value: value >= 1, "be at least 1")
Turns = Annotated[int, _AT_LEAST_1, Bound(lambda value: value <= 100, "be at most 100")]
Positive = Annotated[float, _ABOVE_0]
Temperature = Annotated[float, _ABOVE_0, Bound(lambda value: value <= 2, "be at most 2")]
AtLeast1 = Annotated[float, _AT_LEAST_1]
PositiveInt = Annotated[int, _ABOVE_0]
NotNegative = Annotated[float, _NOT_NEGATIVE]
NotNegativeInt = Annotated[int, _NOT_NEGATIVE]
Share = Annotated[float, _ABOVE_0, _AT_MOST_1]
Discount = Annotated[float, _NOT_NEGATIVE, _AT_MOST_1]
Decay = Annotated[float, Bound(lambda value: 0 <= value < 1, "be at least 0 and below 1")]


class _OutOfBounds(Exception):
    """The type is right and the number is not; the text says what it should be."""


def coerce(value: Any, hint: Any, name: str, or_null: bool = False) -> Any:
    """`value` as the type `hint`. Raises UserError that names the setting; `or_null`: null would do too."""
    try:
        return _convert(value, hint)
    except TypeError:
        wanted = describe(hint | None if or_null else hint)
        raise UserError(f"{name} should be {wanted}, got {value!r}") from None
    except _OutOfBounds as error:
        raise UserError(f"{name} should {error}") from None


def nullable(hint: Any) -> bool:
    """Whether None is a value of this type."""
    return type(None) in typing.get_args(hint)


def _convert(value: Any, hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        number = _convert(value, args[0])
        for bound in hint.__metadata__:
            if not bound.holds(number):
                raise _OutOfBounds(f"{bound.says}, got {number}")
        return number
    if origin in (Union, types.UnionType):
        for option in args:
            try:
                return _convert(value, option)
            except TypeError:
                continue
        raise TypeError
    if origin is Literal:
        if value is None and "none" in args:  # YAML and overrides read the bare word as null
            return "none"
        word = value.lower() if isinstance(value, str) else value
        if word in args and not isinstance(value, bool):
            return word
        raise TypeError
    if origin is tuple:
        if isinstance(value, str) and value.strip():  # a,b on a command line
            value = [item.strip() for item in value.split(",")]
        elif type(value) in (int, float):
            value = [value]
        if not isinstance(value, list | tuple):
            raise TypeError
        return tuple(_convert(item, args[0]) for item in value)
    if origin is collections.abc.Mapping:
        if not isinstance(value, dict):
            raise TypeError
        return {_convert(k, args[0]): _convert(v, args[1]) for k, v in value.items()}
    if hint is type(None):
        if value is not None:
            raise TypeError
        return None
    if hint is float:
        return _to_float(value)
    if hint is int:
        return _to_int(value)
    if hint is bool and isinstance(value, str) and value.lower() in BOOLEANS:
        return BOOLEANS[value.lower()]
    if hint is str and type(value) is int:  # a name that is a number
        return str(value)
    if type(value) is not hint:
        raise TypeError
    if hint is str and NO_TEXT.search(value):
        raise _OutOfBounds(f"be text without a NUL character or half of a surrogate pair, got {value!r}")
    return value


def _to_float(value: Any) -> float:
    """Numbers, and what YAML leaves a string though a person means a number (3e-5)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise TypeError from None
    if not math.isfinite(number):
        raise TypeError
    return number


def _to_int(value: Any) -> int:
    """Whole numbers, also as text or as 2.0."""
    if type(value) is int:
        return value
    number = _to_float(value)
    if not number.is_integer():
        raise TypeError
    return int(number)


def describe(hint: Any, bounds: bool = False) -> str:
    """A type in words; `bounds`: and of numbers, which."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        which = " and ".join(bound.says for bound in hint.__metadata__)
        return describe(args[0]) + (f" that should {which}" if bounds else "")
    if origin in (Union, types.UnionType):
        *first, last = (describe(option, bounds) for option in args)
        comma = "," if any(" that should " in text for text in first) else ""
        return f"{', '.join(first)}{comma} or {last}"
    if origin is Literal:
        return ("one of " if len(args) > 1 else "") + ", ".join(map(str, args))
    if origin is tuple:
        return "a list like " + ("[1.5, 0.5]" if args[0] is float else "[a, b]")
    if origin is collections.abc.Mapping:
        return "a mapping"
    return NAMES.get(hint, str(hint))
