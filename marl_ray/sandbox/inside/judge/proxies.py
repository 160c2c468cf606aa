"""Proxies in the judge for objects and functions that live in the guest.

A `ProxyObject` can be called, iterated and measured, and its attributes can be used, as far as the object supports it
(see `abilities`). The program never decides whether its own answer is right: a proxy is neither equal to nor ordered
with plain data, and arithmetic is allowed between two proxies only, since `proxy - expected` would send the expected
value to the program. Two exceptions ask the program and mark the verdict as not trusted:

- operators of an instance that the test's text makes of the program's class (see `instrumentation`): `Vec(1, 2) * 3` is
  a test of the class's operators;
- comparisons of the program's objects with each other.

A refused operation is recorded in the evaluation context, and a test with a refusal cannot pass.

Each question (`len`, `str`, `float`, ...) is sent once per state of the program: until the test calls or sets
something, the answer is cached.
"""

from __future__ import annotations

import builtins
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..protocol.encoding import ProtocolError, UnsupportedValue, Wire, encode
from ..protocol.messages import Status
from ..protocol.references import (
    ALL_METHODS,
    BINARY,
    FROM_GUEST,
    METHOD_BITS,
    ORIGIN,
    clean_name,
    origin_of,
    stdlib_name,
)
from ..protocol.shared_objects import SharedObjects
from .evaluation_context import CONTEXT
from .remote_errors import clean_text

_MAX_TYPES = 256
_FUNCTION_ATTRIBUTES = frozenset(
    f"__{name}__"
    for name in ("name", "qualname", "dict", "wrapped", "defaults", "kwdefaults", "members", "bases", "mro")
)
"""Special attributes that are data, and are requested like ordinary attributes."""


class ProxySession(Protocol):
    """Requests that a proxy sends to its guest (see `GuestSession`)."""

    mutations: int
    decoding: bool

    def fetch(self, operation: str, *plain: Wire, values: Sequence[Any] = ()) -> Any: ...
    def mutate(self, operation: str, *plain: Wire, values: Sequence[Any] = ()) -> Any: ...
    def call(
        self, target: str | int, attribute: str | None, arguments: Sequence[Any], keywords: dict[str, Any]
    ) -> Any: ...
    def fail(self, status: Status, error_type: str, message: str) -> BaseException: ...


class SessionProvider(Protocol):
    """Source of the session that an object lives in: one session, or the current session of a suite runner."""

    def current_session(self) -> ProxySession: ...


class ProxyObject:
    """Proxy of one object. Each proxy class has the name of the object's class and the methods the object supports."""

    __slots__ = ("__abilities", "__answers", "__hash", "__mutations", "__provider", "__target", "__weakref__")

    def __new__(cls, *arguments: Any, **keywords: Any) -> ProxyObject:
        raise CONTEXT.refuse(f"the class of {_describe_class(cls)} is not here to be called")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name not in _FUNCTION_ATTRIBUTES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return session_of(self).fetch("get", self.__target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        session_of(self).mutate("set", self.__target, name, values=[value])

    def __delattr__(self, name: str) -> None:
        session_of(self).mutate("delete", self.__target, name)

    def __str__(self) -> Any:
        return _ask(self, "operate", "str")

    def __repr__(self) -> Any:
        return _ask(self, "operate", "repr")

    def __format__(self, form: str) -> Any:
        return session_of(self).fetch("operate", "format", values=[self, form])

    def __bool__(self) -> Any:
        return _ask(self, "operate", "truth") if self.__abilities & (METHOD_BITS["bool"] | METHOD_BITS["len"]) else True

    def __hash__(self) -> int:
        if not self.__abilities & METHOD_BITS["hash"]:
            return object.__hash__(self)
        if self.__hash is None:
            raise TypeError(f"unhashable type: {type(self).__name__!r}")
        return self.__hash


class _OptionalMethods:
    """Special methods of a proxy class, by ability: each class has only the methods of its object."""

    def call(self, *arguments: Any, **keywords: Any) -> Any:
        return session_of(self).call(target_of(self), None, arguments, keywords)

    def iter(self) -> Any:
        if abilities_of(self) & METHOD_BITS["self"]:
            return self
        return session_of(self).fetch("operate", "iter", values=[self])

    def next(self) -> Any:
        (item,) = next_items(self, 1) or _stop(self)
        return item

    def getitem(self, key: Any) -> Any:
        return session_of(self).fetch("operate", "getitem", values=[self, key])

    def setitem(self, key: Any, value: Any) -> None:
        session_of(self).mutate("operate", "setitem", values=[self, key, value])

    def delitem(self, key: Any) -> None:
        session_of(self).mutate("operate", "delitem", values=[self, key])

    def contains(self, item: Any) -> bool:
        if _is_operand(self):
            return bool(session_of(self).fetch("operate", "contains", values=[self, item]))
        if not abilities_of(self) & METHOD_BITS["iter"]:
            raise CONTEXT.refuse(f"whether something is in {describe(self)} cannot be left to the program")
        return any(element is item or element == item for element in iter(self))  # type: ignore[call-overload]

    def enter(self) -> Any:
        return session_of(self).call(target_of(self), "__enter__", (), {})

    def exit(self, *error: object) -> None:
        session_of(self).call(target_of(self), "__exit__", (None, None, None), {})

    def reversed(self) -> Any:
        return session_of(self).fetch("operate", "reversed", values=[self])

    def round(self, *digits: Any) -> Any:
        return session_of(self).fetch("operate", "round", values=[self, *digits])


def _stop(proxy: Any) -> Any:
    raise StopIteration(object.__getattribute__(proxy, "_ProxyObject__answers").pop("returned", None))


def next_items(proxy: Any, limit: int) -> tuple[Any, ...]:
    """Return the next `limit` items of an iterator; fewer, or none, at its end."""
    session = session_of(proxy)
    answer = session.mutate("next", target_of(proxy), limit)
    if type(answer) is not tuple or [type(part) for part in answer[:2]] != [tuple, bool] or len(answer) != 3:
        raise session.fail("crash", "ProtocolError", "malformed items")
    items, ended, returned = answer
    if len(items) > limit or (len(items) < limit) is not ended:
        raise session.fail("crash", "ProtocolError", "malformed items")
    object.__getattribute__(proxy, "_ProxyObject__answers")["returned"] = returned
    return items  # type: ignore[no-any-return]


def fetch_items(value: Any) -> Any:
    """Return the items of a proxy, fetched in batches, for callers that consume all (`list(...)`); else `value`."""
    if not isinstance(value, ProxyObject) or not hasattr(type(value), "__iter__"):
        return value
    iterator = iter(value)
    if not isinstance(iterator, ProxyObject) or not hasattr(type(iterator), "__next__"):
        return iterator
    items: list[Any] = []
    limit = 16
    while len(batch := next_items(iterator, limit)) == limit:
        items += batch
        limit = min(2 * limit, 4096)
    return [*items, *batch]


@functools.lru_cache(maxsize=512)
def proxy_class(name: str, abilities: int) -> type[ProxyObject]:
    """Return the proxy class for objects of one type."""
    methods = {
        f"__{ability}__": _METHODS[ability]
        for ability, bit in METHOD_BITS.items()
        if abilities & bit and ability in _METHODS
    }
    own: dict[str, Any] = {"__slots__": (), "__module__": "solution"}
    # Every class has these two attributes, so the class's would hide the object's.
    own |= {name: property(functools.partial(_ask_attribute, question=name)) for name in ("__doc__", "__annotations__")}
    return type(clean_text(name, 80) or "?", (ProxyObject,), {**methods, **own})


def _ask_attribute(proxy: Any, question: str) -> Any:
    return _ask(proxy, "get", question)


def _make_proxy(
    kind: type[ProxyObject], provider: SessionProvider, target: str | int, abilities: int, hash_value: int | None
) -> ProxyObject:
    proxy = object.__new__(kind)
    set_field = object.__setattr__
    set_field(proxy, "_ProxyObject__provider", provider)
    set_field(proxy, "_ProxyObject__target", target)
    set_field(proxy, "_ProxyObject__abilities", abilities)
    set_field(proxy, "_ProxyObject__hash", hash_value)
    set_field(proxy, "_ProxyObject__answers", {})
    set_field(proxy, "_ProxyObject__mutations", -1)
    return proxy


def session_of(proxy: Any) -> ProxySession:
    """Return the session of a proxy. Raises Refused if its guest is gone."""
    return object.__getattribute__(proxy, "_ProxyObject__provider").current_session()  # type: ignore[no-any-return]


def target_of(proxy: Any) -> str | int:
    return object.__getattribute__(proxy, "_ProxyObject__target")  # type: ignore[no-any-return]


def abilities_of(proxy: Any) -> int:
    return object.__getattribute__(proxy, "_ProxyObject__abilities")  # type: ignore[no-any-return]


def _is_operand(proxy: Any) -> bool:
    """Return whether the program may be asked about the current operator; if so, mark the verdict as untrusted."""
    is_operand = any(proxy is operand for operand in CONTEXT.operands)
    CONTEXT.untrusted |= is_operand
    return is_operand


def _describe_class(kind: type) -> str:
    return f"an object of the program's type {kind.__name__}"


def describe(proxy: Any) -> str:
    return _describe_class(type(proxy))


def _ask(proxy: Any, operation: str, question: str) -> Any:
    """Return the cached answer for this state of the program, or send the question."""
    session = session_of(proxy)
    answers = object.__getattribute__(proxy, "_ProxyObject__answers")
    if object.__getattribute__(proxy, "_ProxyObject__mutations") != session.mutations:
        answers.clear()
        object.__setattr__(proxy, "_ProxyObject__mutations", session.mutations)
    if question not in answers:
        try:
            if operation == "get":
                answers[question] = session.fetch("get", target_of(proxy), question), None
            else:
                answers[question] = session.fetch("operate", question, values=[proxy]), None
        except Exception as error:
            answers[question] = None, error
    answer, raised = answers[question]
    if raised is not None:
        raise raised
    return answer


def _compare(left: Any, right: Any, operator: str) -> Any:
    if isinstance(right, ProxyObject):
        session = session_of(left)
        if session.decoding:
            return (left is right) is (operator == "eq")  # two keys of one dict
        if not CONTEXT.compares:
            raise CONTEXT.refuse(f"{describe(left)} is not plain data, so it cannot be compared here")
        CONTEXT.untrusted = True
        return session.fetch("operate", operator, values=[left, right])
    if not abilities_of(left) & METHOD_BITS["eq" if operator == "ne" else operator]:
        return NotImplemented  # like the object, which has no such method
    raise CONTEXT.refuse(f"{describe(left)} is not plain data, so it cannot be compared")


def _comparison(operator: str) -> Callable[[Any, Any], Any]:
    return lambda proxy, other: _compare(proxy, other, operator)


def _unary(question: str) -> Callable[[Any], Any]:
    return lambda proxy: _ask(proxy, "operate", question)


def _binary(operator: str, mirrored: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not _is_operand(self) and not isinstance(other, ProxyObject):
            raise CONTEXT.refuse(f"{describe(self)} cannot be combined with plain data here")
        values = [other, self] if mirrored else [self, other]
        return session_of(self).mutate("operate", operator, values=values)

    return method


_METHODS: dict[str, Any] = {
    **{name: method for name, method in vars(_OptionalMethods).items() if name in METHOD_BITS},
    **{name: _unary(name) for name in ("len", "int", "float", "complex", "index", "abs", "neg", "pos", "invert")},
}
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(ProxyObject, f"__{_name}__", _comparison(_name))
for _name in BINARY:
    _function = f"{_name}_" if _name in ("and", "or") else _name
    setattr(ProxyObject, f"__{_name}__", _binary(_function))
    setattr(ProxyObject, f"__i{_name}__", _binary(f"i{_name}"))
    setattr(ProxyObject, f"__r{_name}__", _binary(_function, mirrored=True))
del _name, _function


class JudgeObjects(SharedObjects):
    """The judge's table of shared objects, and the proxies of one session."""

    def __init__(self, provider: SessionProvider) -> None:
        super().__init__()
        self._provider = provider
        self._proxies: weakref.WeakValueDictionary[int, ProxyObject] = weakref.WeakValueDictionary()
        self._classes: dict[tuple[str, int], type[ProxyObject]] = {}

    def proxy(self, payload: Wire, provider: SessionProvider | None = None) -> ProxyObject:
        """Return the proxy for a reference [name or number, type name, abilities, hash]. Raises ProtocolError.

        `provider` (default: the table's own) supplies the session of a new proxy.
        """
        kinds = [type(part) for part in payload]
        if kinds[:3] not in ([int, str, int], [str, str, int]) or len(kinds) != 4:
            raise ProtocolError("malformed reference")
        target, name, abilities, hash_value = payload
        name = clean_name(name)
        valid_hash = kinds[3] in (int, type(None)) and -(1 << 63) <= (hash_value or 0) < 1 << 63
        if not 0 <= abilities <= ALL_METHODS or not valid_hash:
            raise ProtocolError("malformed reference")
        proxy = self._proxies.get(target)
        if proxy is None:
            kind = self._classes.get((name, abilities))
            if kind is None:
                if len(self._classes) >= _MAX_TYPES:
                    raise ProtocolError("objects of too many types")
                kind = self._classes[name, abilities] = proxy_class(name, abilities)
            proxy = self._proxies[target] = _make_proxy(kind, provider or self._provider, target, abilities, hash_value)
        return proxy

    def resolve_reference(self, payload: Wire) -> ProxyObject:
        if type(payload[0]) is not int:
            raise ProtocolError("malformed reference")
        return self.proxy(payload)

    def attach_origin(self, value: Any, home: Wire) -> None:
        if home is not None:
            object.__getattribute__(value, "__dict__")[ORIGIN] = self.resolve_reference(home)

    def resolve_name(self, name: str) -> Any:
        if name not in FROM_GUEST:
            raise ProtocolError("unexpected name")
        return FROM_GUEST[name]

    def encode_origin(self, value: Any) -> Wire:
        home = origin_of(value)
        return None if home is None else self.encode_reference(home)

    def encode_reference(self, value: Any) -> Wire:
        if isinstance(value, ProxyObject):
            if session_of(value) is not self._provider:
                raise UnsupportedValue("an object of the program was lost when its process ended")
            return {"h": [target_of(value)]}
        if value is Ellipsis or value is NotImplemented:
            return {"n": f"builtins:{value!r}"}
        if isinstance(value, Exception) and vars(builtins).get(type(value).__name__) is type(value):
            return {"e": [type(value).__name__, [encode(argument, self, 1) for argument in value.args]]}
        name = stdlib_name(value)
        if name is not None:
            return {"n": name}
        raise UnsupportedValue(f"{type(value).__name__} is not plain data")
