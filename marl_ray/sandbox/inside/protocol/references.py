"""Objects that cross by reference instead of by value: by standard-library name, or with a mask of special methods."""

from __future__ import annotations

import builtins
import functools
import sys
import types
from typing import Any

SPECIAL_METHODS = (
    *("call", "iter", "next", "len", "getitem", "setitem", "delitem", "contains", "bool", "int", "float", "complex"),
    *("index", "hash", "enter", "exit", "abs", "neg", "pos", "invert", "round", "reversed", "eq", "lt", "le", "gt"),
    *("ge", "self"),
)
"""Special methods of a guest's object, one bit each; `self` marks an iterator that is its own iterator.

The guest looks the bits up on the object's type, and the judge gives its proxy just these methods: `callable(x)`,
`hasattr(x, "__len__")` and `isinstance(x, Iterable)` answer as they would on the object. A guest that sends other bits
has an object that can do less or fails more."""
METHOD_BITS = {name: 1 << number for number, name in enumerate(SPECIAL_METHODS)}
ALL_METHODS = (1 << len(SPECIAL_METHODS)) - 1

_KINDS = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)
_FUNCTIONS: tuple[Any, ...] = (abs, all, any, chr, divmod, len, max, min, ord, round, sorted, sum)
_NUMBERS: tuple[Any, ...] = (int, float, complex, bool)
_CONTAINERS: tuple[Any, ...] = (str, bytes, bytearray, list, tuple, set, frozenset, dict, range)
_EXCEPTIONS = [kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, Exception)]

FROM_GUEST: dict[str, Any] = {
    "builtins:Ellipsis": Ellipsis,
    "builtins:NotImplemented": NotImplemented,
    **{f"builtins:{thing.__name__}": thing for thing in (*_NUMBERS, *_CONTAINERS, object, *_EXCEPTIONS, *_FUNCTIONS)},
}
"""Objects that a guest may name: calling them gives no more than the program could have returned itself."""


def stdlib_name(value: Any) -> str | None:
    """Return "module:name" for a function or class of the standard library; None for anything else."""
    return _name_of(value) if isinstance(value, _KINDS) else None


@functools.lru_cache(maxsize=1024)
def _name_of(value: Any) -> str | None:
    module = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", "")
    path = getattr(value, "__qualname__", "")
    if not isinstance(module, str) or module.partition(".")[0] not in sys.stdlib_module_names:
        return None
    target: Any = sys.modules.get(module)
    for name in path.split("."):
        target = getattr(target, name, None)
    if target is value:
        return f"{module}:{path}"
    return next((f"types:{name}" for name, kind in vars(types).items() if kind is value), None)
