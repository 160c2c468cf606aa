"""What an object of the program can do, as far as Python asks its type: one bit each.

The guest looks it up, the judge gives its stand-in just these methods, so that `callable(x)`, `hasattr(x, "__len__")`
or `isinstance(x, Iterable)` answer as they would on the object. A guest that tells other bits than the truth has an
object that can do less or fails more.
"""

from __future__ import annotations

NAMES = (
    *("call", "iter", "next", "len", "getitem", "setitem", "delitem", "contains", "bool", "int", "float", "complex"),
    *("index", "hash", "enter", "exit", "abs", "neg", "pos", "invert", "round", "reversed", "eq", "lt", "le", "gt"),
    *("ge", "self"),
)
"""Special methods, and `self`: an iterator that is known to be its own."""
BITS = {name: 1 << number for number, name in enumerate(NAMES)}
ALL = (1 << len(NAMES)) - 1
