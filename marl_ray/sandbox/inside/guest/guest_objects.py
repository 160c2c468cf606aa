"""The guest's side of references: objects of the program that the judge has proxies for."""

from __future__ import annotations

import builtins
import functools
import importlib
import sys
import types
from typing import Any

from ..protocol.encoding import Wire
from ..protocol.references import FROM_GUEST, METHOD_BITS, OVERRIDABLE
from ..protocol.shared_objects import SharedObjects


class GuestObjects(SharedObjects):
    """The guest's table of shared objects, and the numbered objects that only the guest holds."""

    longest_range_received = sys.maxsize

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__()
        self._module = module
        self._objects: list[Any] = []
        self._references: dict[int, int] = {}

    def origin_reference(self, value: Any) -> list[Wire]:
        """Return [number, type name, abilities, hash] of an object."""
        number = self._references.get(id(value))
        if number is None:
            number = self._references[id(value)] = len(self._objects)
            self._objects.append(value)  # keeps the object alive, so that its id stays unique
        return [number, *describe_object(value)]

    def encode_reference(self, value: Any) -> Wire:
        if value is Ellipsis or value is NotImplemented:
            return {"n": f"builtins:{value!r}"}
        if type(value) in (type, types.BuiltinFunctionType):
            name = getattr(value, "__name__", None)
            if type(name) is str and vars(builtins).get(name) is value and f"builtins:{name}" in FROM_GUEST:
                return {"n": f"builtins:{name}"}
        return {"h": self.origin_reference(value)}

    @staticmethod
    @functools.lru_cache(maxsize=1024)
    def overridden_methods(kind: type, base: type) -> int:
        names = set().union(*map(vars, kind.__mro__[: kind.__mro__.index(base)]))
        if hasattr(kind, "_fields"):
            names.discard("__repr__")  # every namedtuple has one
        return sum(1 << bit for bit, name in enumerate(OVERRIDABLE) if f"__{name}__" in names)

    def build_exception(self, name: Wire, arguments: list[Any]) -> Any:
        kind = getattr(builtins, name)
        made = kind.__new__(kind, *arguments)
        made.args = tuple(arguments)
        return made

    def resolve_reference(self, payload: Wire) -> Any:
        return self.target(payload[0])

    def target(self, target: str | int) -> Any:
        """Return the object of a name or number. Raises NameError."""
        if isinstance(target, int):
            return self._objects[target]
        try:
            return self._module.__dict__[target]
        except KeyError:
            raise NameError(f"name {target!r} is not defined") from None

    def resolve_name(self, name: str) -> Any:
        module, _, path = name.partition(":")
        value: Any = importlib.import_module(module)
        for part in path.split("."):
            value = getattr(value, part)
        return value


def describe_object(value: Any) -> tuple[str, int, int | None]:
    """Return type name, abilities and, if its class defines one, hash."""
    kind: Any = type(value)
    mask = _abilities_of(kind)
    if isinstance(value, type) and hasattr(value, "__class_getitem__"):
        mask |= METHOD_BITS["getitem"]
    own_hash = None
    if mask & METHOD_BITS["hash"]:
        try:
            own_hash = hash(value)
        except BaseException:  # __hash__ may raise anything
            pass
    return kind.__name__, mask, own_hash


@functools.cache
def _abilities_of(kind: type) -> int:
    """Return the abilities of a type's instances."""
    methods: dict[str, Any] = {}
    for base in reversed(kind.__mro__[:-1]):
        methods.update(vars(base))
    mask = sum(bit for name, bit in METHOD_BITS.items() if methods.get(f"__{name}__") is not None)
    if "__hash__" in methods:
        mask |= METHOD_BITS["hash"]
    if kind is types.GeneratorType or (kind.__module__ in ("builtins", "itertools") and "__next__" in methods):
        mask |= METHOD_BITS["self"]
    return mask
