"""What is known of a value in a function that is read but not run, and the rules by which values combine.

`marl_ray.environments.code_generation.flow` moves these values through a function.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from marl_ray.environments.code_generation.scopes import Function

UNKNOWN: Any = object()
CONSTANTS = (type(None), bool, int, float, str, bytes)
MAX_FOLDED = 1_000
"""Numbers above this and longer texts are not computed with, and nothing is formatted, so that no constant
expression costs anything."""

OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
PROBES: tuple[Any, ...] = (123_456, -5, "ab", b"ab", [7], (7,))


@dataclass(slots=True, eq=False)
class Scope:
    """One run of a function: its own names, those it declares to be outer ones, and their values at this point."""

    names: frozenset[str] = frozenset()
    outer: frozenset[str] = frozenset()
    parent: Scope | None = None
    env: dict[str, Value] = field(default_factory=dict)
    returned: list[Value] = field(default_factory=list)
    breaks: list[dict[str, Value]] = field(default_factory=list)
    continues: list[dict[str, Value]] = field(default_factory=list)
    changing: frozenset[str] = frozenset()
    """Names that the loops around this point bind anew in each round."""


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of a value.

    `direct` are the helper calls (their numbers) and the names that it may be as they are; `worked`: it may be
    the result of an operation; `origins` are the helper calls it may depend on; `functions` the helpers (their
    names) and nested functions it may be or hold; `items` the keys and values of a display; `constant` its value,
    if it is one.
    """

    direct: frozenset[int | str] = frozenset()
    worked: bool = False
    origins: frozenset[int] = frozenset()
    functions: frozenset[str | tuple[Function, Scope]] = frozenset()
    items: tuple[tuple[Any, Value], ...] | None = None
    constant: Any = UNKNOWN

    @property
    def truth(self) -> bool | None:
        """Whether it counts as true; None when that is not known."""
        if self.constant is not UNKNOWN:
            return bool(self.constant)
        return None if self.items is None else bool(self.items)


NONE = Value(constant=None)


def join(values: Iterable[Value]) -> Value:
    """It may be any of the values; `NONE` when there are none."""
    several = list(values)
    if not several:
        return NONE
    if all(value == several[0] for value in several):
        return several[0]
    return Value(
        frozenset(source for v in several for source in v.direct),
        any(v.worked for v in several),
        frozenset(call for v in several for call in v.origins),
        frozenset(function for v in several for function in v.functions),
    )


def join_envs(envs: list[dict[str, Value]]) -> dict[str, Value]:
    """The values of names where several ways meet."""
    names = dict.fromkeys(name for env in envs for name in env)
    return {name: join(env[name] for env in envs if name in env) for name in names}


def derived(*values: Value, keep_functions: bool = False) -> Value:
    """The result of an operation on the values."""
    functions = (function for v in values for function in v.functions)
    return Value(
        worked=True,
        origins=frozenset(call for v in values for call in v.origins),
        functions=frozenset(functions) if keep_functions else frozenset(),
    )


def display(pairs: list[tuple[Any, Value]] | None, values: list[Value]) -> Value:
    """A list, tuple, set or dict of values; `pairs` are its keys and values where all keys are known."""
    whole = derived(*values, keep_functions=True)
    return Value(whole.direct, True, whole.origins, whole.functions, None if pairs is None else tuple(pairs))


def element(value: Value, key: Any = UNKNOWN) -> Value:
    """One element of a value: the one at `key`, where both are known."""
    if value.items:
        if key is not UNKNOWN:
            keys = [k for k, _ in value.items]
            wanted = key + len(keys) if isinstance(key, int) and key < 0 and keys == list(range(len(keys))) else key
            for k, item in value.items:
                if type(k) is type(wanted) and k == wanted:
                    return item
        return join(item for _, item in value.items)
    return derived(value, keep_functions=True)


def operate(operation: ast.AST, left: Value, right: Value) -> Value:
    """The result of a binary operation or comparison; one that changes nothing gives its operand back."""
    compute = OPERATORS.get(type(operation))
    if compute is not None:
        if left.constant is not UNKNOWN and right.constant is not UNKNOWN:
            return _folded(compute, left, right)
        if _is_neutral(operation, right, lambda probe: compute(probe, right.constant)):
            return left
        if _is_neutral(operation, left, lambda probe: compute(left.constant, probe)):
            return right
    return derived(left, right)


def _folded(compute: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:
    operands = (left.constant, right.constant)
    sizes = (0 if o is None else abs(o) if isinstance(o, int | float) else len(o) for o in operands)
    formatted = compute is operator.mod and isinstance(left.constant, str | bytes)  # "%9999999999d" % 1
    try:
        result = UNKNOWN if formatted or any(size > MAX_FOLDED for size in sizes) else compute(*operands)
    except Exception:  # the program would raise too, or compares what has no order
        result = UNKNOWN
    return Value(constant=result) if isinstance(result, CONSTANTS) else Value(worked=True)


def _is_neutral(operation: ast.AST, other: Value, apply: Callable[[Any], Any]) -> bool:
    """Whether the operation with the constant or empty display `other` gives back whatever it is applied to."""
    if other.items == ():
        return isinstance(operation, ast.Add | ast.BitOr)
    if not isinstance(other.constant, int | float | str | bytes) or other.constant not in (0, 1, -1, "", b""):
        return False
    results = []
    for probe in (True, False) if isinstance(other.constant, bool) else PROBES:
        try:
            results.append(apply(probe) == probe)
        except (TypeError, ValueError, ZeroDivisionError):
            continue
    return bool(results) and all(results)
