"""Classes made here for instances of a program's subclasses of builtin types: the name is theirs, the rest the base's.

So `type(x) is str` is as false as it was over there, `x == "a"` is decided by str, and a namedtuple has its fields.
What else the program's class defines is asked of the object itself, its home (see `proxies`), where there is one.
"""

from __future__ import annotations

import collections
import keyword
import operator
from typing import Any

ORIGIN = "__sandbox_home__"
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
_UNARY = ("neg", "pos", "abs", "invert", "str", "repr")
_ITEMS = ("getitem", "setitem", "delitem", "missing", "call")
OVERRIDABLE = (*_ITEMS, *_UNARY, *BINARY)
ALL_OVERRIDDEN = (1 << len(OVERRIDABLE)) - 1
"""Special methods that are asked of the home where a subclass defines them anew. Not among them is what decides
verdicts: equality, order, truth, length, iteration and hash are those of the base value.
"""


_LOOKS_UP = ("getitem", "missing", *BINARY)
"""What a Counter compares and calculates with: in Python, item by item. Asked of the home these would be the program's
word on equality, and would show it the keys of the other side.
"""


def _methods(mask: int, base: type = object) -> dict[str, Any]:
    """What asks the home, for these bits of a subclass of `base`."""
    found: dict[str, Any] = {}
    for bit, name in enumerate(OVERRIDABLE):
        if not mask >> bit & 1 or (base is collections.Counter and name in _LOOKS_UP):
            continue
        if name in ("and", "or"):
            perform: Any = getattr(operator, f"{name}_")
        elif name == "missing":
            name, perform = "getitem", operator.getitem
        else:
            perform = {"str": str, "repr": repr}.get(name) or getattr(operator, name)
        found[f"__{name}__"] = _at_home(perform)
        if name in BINARY:
            found[f"__r{name}__"] = _at_home(perform, mirrored=True)
    return found


def _at_home(perform: Any, mirrored: bool = False) -> Any:
    def method(self: Any, *others: Any) -> Any:
        values = [resolve_origin(self), *map(resolve_origin, others)]
        if values[0] is self:
            raise TypeError(f"{type(self).__name__!r} object is not the program's")
        return perform(*(reversed(values) if mirrored else values))

    return method


_MOST_FIELDS = 255
_LONGEST_NAME = 100


def origin_of(value: Any) -> Any:
    """The stand-in for the object whose base value this is; None where there is none."""
    try:
        return object.__getattribute__(value, "__dict__").get(ORIGIN)
    except AttributeError:
        return None


def resolve_origin(value: Any) -> Any:
    """The stand-in for the object whose base value this is; the value itself where there is none."""
    home = origin_of(value)
    return value if home is None else home


def _ask_home(self: Any, name: str) -> Any:
    home = origin_of(self)
    if home is None or (name.startswith("__") and name.endswith("__")):
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
    return getattr(home, name)


def _tell_home(self: Any, name: str, value: Any) -> None:
    home = origin_of(self)
    if home is None:
        object.__setattr__(self, name, value)
    else:
        setattr(home, name, value)


def subclass(name: str, base: Any, mask: int) -> Any:
    """A subclass of a builtin type; its name is clean (`clean_name`)."""
    own = {"__getattr__": _ask_home, "__setattr__": _tell_home, "__module__": "solution"}
    return type(name, (base,), {**_methods(mask, base), **own})


def are_fields(fields: Any) -> bool:
    """Whether this is a tuple of field names of a namedtuple, neither too long nor too many."""
    if type(fields) is not tuple or len(fields) > _MOST_FIELDS:
        return False
    for field in fields:
        if type(field) is not str or len(field) > _LONGEST_NAME or not field.isidentifier():
            return False
        if field.startswith("_") or keyword.iskeyword(field):
            return False
    return len(set(fields)) == len(fields)


def named_tuple(name: str, fields: tuple[str, ...], mask: int) -> Any:
    """A namedtuple class; its name is clean and its fields are some (`are_fields`).

    Not by `collections.namedtuple`, which runs source made of them.
    """
    names: dict[str, Any] = {field: property(operator.itemgetter(at)) for at, field in enumerate(fields)}
    return type(name, (_NamedTuple,), {**_methods(mask), **names, "_fields": fields, "__match_args__": fields})


class _NamedTuple(tuple):  # type: ignore[type-arg]
    """What all namedtuples have in common."""

    _fields: tuple[str, ...] = ()
    __module__ = "solution"

    def __new__(cls, *values: Any, **by_name: Any) -> _NamedTuple:
        given = [*values, *(by_name.pop(field) for field in cls._fields[len(values) :] if field in by_name)]
        if len(given) != len(cls._fields) or by_name:
            raise TypeError(f"{cls.__name__} takes the fields {', '.join(cls._fields)}")
        return tuple.__new__(cls, given)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
        return f"{type(self).__name__}({fields})"

    def __getattr__(self, name: str) -> Any:
        return _ask_home(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("can't set attribute")

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, **changes: Any) -> _NamedTuple:
        return type(self)(**{**self._asdict(), **changes})

    @classmethod
    def _make(cls, values: Any) -> _NamedTuple:
        return cls(*values)


def clean_name(name: str) -> str:
    """The name of a program's class, fit to be one and to be remembered: it may be as long as an answer."""
    text = name[:_LONGEST_NAME].encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() else "?" for c in text) or "?"
