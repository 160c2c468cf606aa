"""Content of objects that equal others by their content alone: mappings, sets, and some classes of the library.

A guest sends the content of its object, and the judge compares it with the content of the test's object. The program
could as well have returned that content itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

_LIBRARY: dict[str, Callable[[Any], Any]] = {
    "array.array": lambda value: (value.typecode, value.tolist()),
    "pathlib.PosixPath": str,
    "pathlib.PurePosixPath": str,
    "pathlib._local.PosixPath": str,  # in Python 3.13
    "pathlib._local.PurePosixPath": str,
    "types.SimpleNamespace": lambda value: dict(vars(value)),
    "uuid.UUID": int,
}


def content_of(value: Any) -> tuple[str, Any] | None:
    """Return the kind of an object and its content; None for an object that is not compared by content."""
    if isinstance(value, Mapping):
        return "mapping", dict(value)
    if isinstance(value, Set):
        return "set", set(value)
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if name not in _LIBRARY:
        return None
    return name, _LIBRARY[name](value)
