"""Objects that are not plain data: references with their special methods, standard-library names, and subclasses.

For an instance of a program's subclass of a builtin type, the judge has a local class with the program's name and the
base's methods. Other methods are forwarded to the original object, its origin, through a proxy (see `proxies`), if
there is one.
"""

from __future__ import annotations

import builtins
import collections
import copy
import functools
import keyword
import operator
import sys
import types
from typing import Any

SPECIAL_METHODS = (
    *("call", "iter", "next", "len", "getitem", "setitem", "delitem", "contains", "bool", "int", "float", "complex"),
    *("index", "hash", "enter", "exit", "abs", "neg", "pos", "invert", "round", "reversed", "eq", "lt", "le", "gt"),
    *("ge", "self"),
)
"""Special methods of a guest's object, one bit each; `self` marks an iterator that is its own iterator.

The guest looks the bits up on the object's type, and the judge gives its proxy only these methods: `callable(x)` and
`isinstance(x, Iterable)` answer as on the object. Forged bits give an object that can do less or fails more."""
METHOD_BITS = {name: 1 << number for number, name in enumerate(SPECIAL_METHODS)}
ALL_METHODS = (1 << len(SPECIAL_METHODS)) - 1

_MAX_FIELDS = 255
_MAX_NAME_LENGTH = 100
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


LIBRARIES = sys.stdlib_module_names | {"numpy"}
"""Top-level modules whose functions and classes cross by name."""


def stdlib_name(value: Any) -> str | None:
    """Return "module:name" for a function or class of the standard library; None for anything else."""
    if not isinstance(value, _KINDS):
        return None
    return _name_of(value)


@functools.lru_cache(maxsize=1024)
def _name_of(value: Any) -> str | None:
    module = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", "")
    path = getattr(value, "__qualname__", "")
    if not isinstance(module, str) or module.partition(".")[0] not in LIBRARIES:
        return None
    target: Any = sys.modules.get(module)
    for name in path.split("."):
        target = getattr(target, name, None)
    if target is value:
        return f"{module}:{path}"
    for name, kind in vars(types).items():
        if kind is value:
            return f"types:{name}"
    return None


ORIGIN = "__sandbox_home__"
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
_UNARY = ("neg", "pos", "abs", "invert", "str", "repr")
OVERRIDABLE = ("getitem", "setitem", "delitem", "missing", "call", *_UNARY, *BINARY)
ALL_OVERRIDDEN = (1 << len(OVERRIDABLE)) - 1
"""Special methods that are forwarded to the origin if the subclass overrides them. The methods that decide verdicts are
excluded: equality, order, truth, length, iteration and hash come from the base value."""
_LOOKS_UP = ("getitem", "missing", *BINARY)
"""Methods with which a Counter compares and calculates item by item. Forwarding them would let the program decide
equality and would show it the keys of the other operand."""


_OPERATIONS = {"and": operator.and_, "or": operator.or_, "missing": operator.getitem, "str": str, "repr": repr}


def _methods(mask: int, base: type = object) -> dict[str, Any]:
    """Return forwarding methods for the bits of `mask`, for a subclass of `base`."""
    methods: dict[str, Any] = {}
    for bit, name in enumerate(OVERRIDABLE):
        if not mask >> bit & 1 or (base is collections.Counter and name in _LOOKS_UP):
            continue
        perform = _OPERATIONS.get(name) or getattr(operator, name)
        if name == "missing":
            name = "getitem"  # the origin calls its own `__missing__`
        methods[f"__{name}__"] = _forward(perform)
        if name in BINARY:
            methods[f"__r{name}__"] = _forward(perform, mirrored=True)
    return methods


def _forward(perform: Any, mirrored: bool = False) -> Any:
    def method(self: Any, *others: Any) -> Any:
        values = [resolve_origin(self), *map(resolve_origin, others)]
        if values[0] is self:
            raise TypeError(f"{type(self).__name__!r} object is not the program's")
        if mirrored:
            values.reverse()
        return perform(*values)

    return method


def origin_of(value: Any) -> Any:
    """Return the proxy of the object whose base value this is; None without an origin."""
    try:
        return object.__getattribute__(value, ORIGIN)
    except AttributeError:
        return None


def resolve_origin(value: Any) -> Any:
    """Return the proxy of the object whose base value this is; the value itself without an origin."""
    origin = origin_of(value)
    return value if origin is None else origin


def _get_from_origin(self: Any, name: str) -> Any:
    origin = origin_of(self)
    if origin is None or (name.startswith("__") and name.endswith("__")):
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
    return getattr(origin, name)


def _set_on_origin(self: Any, name: str, value: Any) -> None:
    origin = origin_of(self)
    if origin is None:
        object.__setattr__(self, name, value)
    else:
        setattr(origin, name, value)


def _copy_of_origin(self: Any, copies: Any = copy.copy) -> Any:
    origin = origin_of(self)
    if origin is None:
        raise TypeError(f"{type(self).__name__!r} object is not the program's")
    return copies(origin)


_COPIES = {
    "__copy__": _copy_of_origin,
    "__deepcopy__": lambda self, memo: _copy_of_origin(self, functools.partial(copy.deepcopy, memo=memo)),
}


def _attributes_of_origin(self: Any) -> Any:
    origin = origin_of(self)
    if origin is None:
        return {}
    return origin.__dict__


def subclass(name: str, base: Any, mask: int) -> Any:
    """Return a subclass of a builtin type. `name` must be cleaned (`clean_name`)."""
    own = {"__getattr__": _get_from_origin, "__setattr__": _set_on_origin, "__module__": "solution"}
    own |= {"__dict__": property(_attributes_of_origin), **_COPIES}
    return type(name, (base,), {**_methods(mask, base), **own})


def are_fields(fields: Any) -> bool:
    """Return whether this is a tuple of namedtuple field names, neither too long nor too many."""
    if type(fields) is not tuple or len(fields) > _MAX_FIELDS:
        return False
    for field in fields:
        if type(field) is not str or len(field) > _MAX_NAME_LENGTH:
            return False
        if not field.isidentifier() or field[0] == "_" or keyword.iskeyword(field):
            return False
    return len(set(fields)) == len(fields)


def named_tuple(name: str, fields: tuple[str, ...], mask: int) -> Any:
    """Return a namedtuple class. `name` must be cleaned (`clean_name`) and `fields` checked (`are_fields`).

    `collections.namedtuple` is not used, because it evaluates source code made of the names.
    """
    names: dict[str, Any] = {field: property(operator.itemgetter(at)) for at, field in enumerate(fields)}
    return type(name, (_NamedTuple,), {**_methods(mask), **names, "_fields": fields, "__match_args__": fields})


class _NamedTuple(tuple):  # type: ignore[type-arg]
    """Base class of namedtuple classes."""

    _fields: tuple[str, ...] = ()
    __module__ = "solution"
    __getattr__ = _get_from_origin

    def __reduce__(self) -> Any:
        return _rebuilt, (type(self).__name__, self._fields, *self)

    def __copy__(self) -> Any:
        if origin_of(self) is None:
            return self
        return _copy_of_origin(self)

    def __deepcopy__(self, memo: Any) -> Any:
        if origin_of(self) is None:
            return tuple.__new__(type(self), copy.deepcopy(tuple(self), memo))
        return _copy_of_origin(self, copy.deepcopy)

    def __new__(cls, *values: Any, **by_name: Any) -> _NamedTuple:
        given = list(values)
        for field in cls._fields[len(values) :]:
            if field in by_name:
                given.append(by_name.pop(field))
        if len(given) != len(cls._fields) or by_name:
            raise TypeError(f"{cls.__name__} takes the fields {', '.join(cls._fields)}")
        return tuple.__new__(cls, given)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
        return f"{type(self).__name__}({fields})"

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("can't set attribute")

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, **changes: Any) -> _NamedTuple:
        return type(self)(**self._asdict() | changes)

    @classmethod
    def _make(cls, values: Any) -> _NamedTuple:
        return cls(*values)


def _rebuilt(name: str, fields: tuple[str, ...], *values: Any) -> Any:
    """Return the namedtuple of a pickle, without the program's object."""
    return tuple.__new__(named_tuple(name, fields, 0), values)


def clean_name(name: str) -> str:
    """Return a printable class name of bounded length: a program's name may be as long as a whole answer."""
    text = name[:_MAX_NAME_LENGTH].encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() else "?" for c in text) or "?"
