"""What judge and guest both have in their standard libraries: it crosses by name."""

from __future__ import annotations

import builtins
import functools
import sys
import types
from typing import Any

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
"""What a program may name: calling it gives no more than what the program could have returned."""


def stdlib_name(value: Any) -> str | None:
    """ "module:name" for a function or class of the standard library; None for anything else."""
    return _name_of(value) if isinstance(value, _KINDS) else None


@functools.lru_cache(maxsize=1024)
def _name_of(value: Any) -> str | None:
    module = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", "")
    path = getattr(value, "__qualname__", "")
    if not isinstance(module, str) or module.partition(".")[0] not in sys.stdlib_module_names:
        return None
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is value:
        return f"{module}:{path}"
    return next((f"types:{name}" for name, kind in vars(types).items() if kind is value), None)
