"""What an object of the program can do, as far as Python asks its type: one bit each.

The guest looks it up, the judge gives its stand-in just these methods, so that `callable(x)`, `hasattr(x, "__len__")`
or `isinstance(x, Iterable)` answer as they would on the object. A guest that tells other bits than the truth has an
object that can do less or fails more.
"""

from __future__ import annotations

import types
from typing import Any

NAMES = (
    *("call", "iter", "next", "len", "getitem", "setitem", "delitem", "contains", "bool", "int", "float", "complex"),
    *("index", "hash", "enter", "exit", "abs", "neg", "pos", "invert", "round", "reversed", "eq", "lt", "le", "gt"),
    *("ge", "self"),
)
"""Special methods, and `self`: an iterator that is known to be its own."""
BITS = {name: 1 << number for number, name in enumerate(NAMES)}
ALL = (1 << len(NAMES)) - 1

_known: dict[type, int] = {}


def mask_of(kind: type) -> int:
    """The abilities of a type's instances. (For the guest: it looks into classes of the program.)"""
    mask = _known.get(kind)
    if mask is None:
        methods: dict[str, Any] = {}
        for base in reversed(kind.__mro__[:-1]):
            methods.update(vars(base))
        mask = sum(bit for name, bit in BITS.items() if methods.get(f"__{name}__") is not None)
        if "__hash__" in methods:
            mask |= BITS["hash"]
        if kind is types.GeneratorType or (kind.__module__ in ("builtins", "itertools") and "__next__" in methods):
            mask |= BITS["self"]
        _known[kind] = mask
    return mask
