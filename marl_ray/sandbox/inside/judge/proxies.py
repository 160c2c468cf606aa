"""Proxies in the judge for objects and functions that live in the guest.

The program never decides whether its own answer is right: a proxy is neither equal to nor ordered with plain data, and
is not combined with plain data, since `proxy - expected` would send the expected value to the program. Exceptions ask
the program and mark the verdict as not trusted: operators of an instance that the test's text makes of the program's
class, or for which the text expects a TypeError (see `instrumentation`), and operators between two objects of the
program. A refused operation is recorded in the evaluation context, and a test with a refusal cannot pass.
"""

from __future__ import annotations

import builtins
import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..protocol.comparable import content_of
from ..protocol.encoding import ProtocolError, UnsupportedValue, Wire, encode
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

if TYPE_CHECKING:
    from .guest_session import GuestSession

_MAX_TYPES = 256
_MAX_BLOCK = 4096
_FUNCTION_ATTRIBUTES = frozenset(
    f"__{name}__"
    for name in ("name", "qualname", "dict", "wrapped", "defaults", "kwdefaults", "members", "bases", "mro")
)
"""Special attributes that are data, and are requested like ordinary attributes."""


@dataclass(slots=True)
class _ProxyState:
    current_session: Callable[[], GuestSession]
    """Returns the session that the object lives in. Raises Refused if its guest is gone."""
    target: str | int
    """Name in the program, or number of the object."""
    abilities: int
    hash: int | None
    answers: dict[str, tuple[Any, Exception | None]] = field(default_factory=dict)
    """Results and exceptions of questions (`len`, `str`, ...), cached until the test calls or sets something."""
    mutations: int = -1
    """The session's `mutations` at the time of these answers."""


class ProxyObject:
    """Proxy of one object. Each proxy class has the name of the object's class and the methods the object supports."""

    __slots__ = ("__sandbox_proxy__", "__weakref__")

    def __new__(cls, *arguments: Any, **keywords: Any) -> ProxyObject:
        raise CONTEXT.refuse(f"the class of {describe(cls)} is not here to be called")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name not in _FUNCTION_ATTRIBUTES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return session_of(self).fetch("get", _state(self).target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        session_of(self).mutate("set", _state(self).target, name, values=[value])

    def __delattr__(self, name: str) -> None:
        session_of(self).mutate("delete", _state(self).target, name)

    def __copy__(self) -> Any:
        return session_of(self).fetch("operate", "copy", values=[self])

    def __deepcopy__(self, memo: object) -> Any:
        return session_of(self).fetch("operate", "deepcopy", values=[self])

    def __str__(self) -> Any:
        return _ask(self, "operate", "str")

    def __repr__(self) -> Any:
        return _ask(self, "operate", "repr")

    def __format__(self, form: str) -> Any:
        return session_of(self).fetch("operate", "format", values=[self, form])

    def __bool__(self) -> Any:
        if not _has(self, "bool") and not _has(self, "len"):
            return True
        return _ask(self, "operate", "truth")

    def __hash__(self) -> int:
        if not _has(self, "hash"):
            return object.__hash__(self)
        value = _state(self).hash
        if value is None:
            raise TypeError(f"unhashable type: {type(self).__name__!r}")
        return value


class _OptionalMethods:
    """Special methods of a proxy class, by ability: each class has only the methods of its object."""

    def call(self, *arguments: Any, **keywords: Any) -> Any:
        return session_of(self).call(_state(self).target, None, arguments, keywords)

    def iter(self) -> Any:
        if _has(self, "self"):
            return self
        return session_of(self).fetch("operate", "iter", values=[self])

    def next(self) -> Any:
        items, _, returned = _next_items(self, 1)
        if not items:
            raise StopIteration(returned)
        return items[0]

    def setitem(self, key: Any, value: Any) -> None:
        session_of(self).mutate("operate", "setitem", values=[self, key, value])

    def delitem(self, key: Any) -> None:
        session_of(self).mutate("operate", "delitem", values=[self, key])

    def contains(self, item: Any) -> bool:
        if _is_operand(self):
            return bool(session_of(self).fetch("operate", "contains", values=[self, item]))
        if not _has(self, "iter"):
            raise CONTEXT.refuse(f"whether something is in {describe(type(self))} cannot be left to the program")
        # Items are fetched ahead only where the iterator belongs to this operation.
        elements = iter(self) if _has(self, "self") else _items(self)  # type: ignore[call-overload]
        return any(element is item or element == item for element in elements)

    def enter(self) -> Any:
        return session_of(self).call(_state(self).target, "__enter__", (), {})

    def exit(self, *error: object) -> None:
        session_of(self).call(_state(self).target, "__exit__", (None, None, None), {})


def _next_items(proxy: Any, limit: int, constant: bool = False) -> tuple[tuple[Any, ...], bool, Any]:
    """Return the next items of an iterator, whether it ended, and a generator's return value.

    These are `limit` items, fewer at the end. `constant`: or fewer, of which only the last may be mutable.
    """
    session = session_of(proxy)
    answer = session.mutate("next", _state(proxy).target, limit, constant)
    if type(answer) is not tuple or len(answer) != 3:
        raise session.violation("malformed items")
    items, ended, _ = answer
    if type(items) is not tuple or type(ended) is not bool:
        raise session.violation("malformed items")
    if len(items) > limit or not (ended or items):
        raise session.violation("malformed items")
    is_short = len(items) < limit
    if is_short is not ended and not constant:
        raise session.violation("malformed items")
    return answer


def _items(value: Any, limit: int = 1, constant: bool = True) -> Iterator[Any]:
    """Yield the items of a proxy, fetched in growing blocks."""
    iterator = iter(value)
    if not isinstance(iterator, ProxyObject) or not hasattr(type(iterator), "__next__"):
        yield from iterator
        return
    ended = False
    while not ended:
        items, ended, _ = _next_items(iterator, limit, constant)
        yield from items
        limit = min(2 * limit, _MAX_BLOCK)


def fetch_items(value: Any, constant: bool = False) -> Any:
    """Return the items of a proxy, fetched in blocks, for callers that consume all (`list(...)`); else `value`.

    `constant`: the caller evaluates an expression per item, so no item may change before the next one is fetched.
    """
    if not isinstance(value, ProxyObject) or not hasattr(type(value), "__iter__"):
        return value
    if constant:
        return _items(value, 16)
    return list(_items(value, 16, constant=False))


def proxy_class(name: str, abilities: int) -> type[ProxyObject]:
    """Return a new proxy class for objects of one type; each session has its own, which tests may set attributes of."""
    return type(clean_text(name, 80) or "?", (ProxyObject,), _class_members(abilities))


@functools.lru_cache(maxsize=512)
def _class_members(abilities: int) -> dict[str, Any]:
    members: dict[str, Any] = {"__slots__": (), "__module__": "solution", **_CLASS_ATTRIBUTES}
    for ability, method in _METHODS.items():
        if abilities & METHOD_BITS[ability]:
            members[f"__{ability}__"] = method
    return members


def _state(proxy: Any) -> _ProxyState:
    return proxy.__sandbox_proxy__  # type: ignore[no-any-return]


def _has(proxy: Any, ability: str) -> bool:
    return bool(_state(proxy).abilities & METHOD_BITS[ability])


def session_of(proxy: Any) -> GuestSession:
    """Return the session of a proxy. Raises Refused if its guest is gone."""
    return _state(proxy).current_session()


def _is_operand(proxy: Any) -> bool:
    """Return whether the program may be asked about the current operator; if so, mark the verdict as untrusted."""
    is_operand = any(proxy is operand for operand in CONTEXT.operands)
    CONTEXT.untrusted |= is_operand
    return is_operand


def describe(kind: type) -> str:
    return f"an object of the program's type {kind.__name__}"


def _ask(proxy: Any, operation: str, question: str) -> Any:
    """Return the cached answer for this state of the program, or send the question."""
    session = session_of(proxy)
    state = _state(proxy)
    if state.mutations != session.mutations:
        state.answers.clear()
        state.mutations = session.mutations
    if question not in state.answers:
        try:
            if operation == "get":
                answer = session.fetch("get", state.target, question)
            else:
                answer = session.fetch("operate", question, values=[proxy])
            state.answers[question] = (answer, None)
        except Exception as error:
            state.answers[question] = (None, error)
    answer, raised = state.answers[question]
    if raised is not None:
        raise raised
    return answer


def _comparison(operator: str) -> Callable[[Any, Any], Any]:
    ability = "eq" if operator == "ne" else operator

    def method(left: Any, right: Any) -> Any:
        if isinstance(right, ProxyObject):
            session = session_of(left)
            if session.decoding:
                return (left is right) is (operator == "eq")  # two keys of one dict
            if not CONTEXT.compares:
                raise CONTEXT.refuse(f"{describe(type(left))} is not plain data, so it cannot be compared here")
            CONTEXT.untrusted = True
            return session.fetch("operate", operator, values=[left, right])
        if not _has(left, ability):
            return NotImplemented  # like an object without such a method
        if right is None and ability == "eq":
            return NotImplemented  # no object equals None
        if _is_operand(left):
            return session_of(left).fetch("operate", operator, values=[left, right])
        if ability == "eq":
            expected = content_of(right)
            if expected is not None:
                content = _ask(left, "operate", "content")
                if type(content) is tuple and content[:1] == expected[:1]:
                    return (content == expected) is (operator == "eq")
        raise CONTEXT.refuse(f"{describe(type(left))} is not plain data, so it cannot be compared")

    return method


def _fetched(operation: str) -> Callable[..., Any]:
    return lambda proxy, *values: session_of(proxy).fetch("operate", operation, values=[proxy, *values])


def _unary(question: str) -> Callable[[Any], Any]:
    return lambda proxy: _ask(proxy, "operate", question)


def _binary(operator: str, mirrored: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        CONTEXT.untrusted |= isinstance(other, ProxyObject)
        if not _is_operand(self) and not isinstance(other, ProxyObject):
            raise CONTEXT.refuse(f"{describe(type(self))} cannot be combined with plain data here")
        values = [other, self] if mirrored else [self, other]
        return session_of(self).mutate("operate", operator, values=values)

    return method


_METHODS: dict[str, Any] = {
    **{name: method for name, method in vars(_OptionalMethods).items() if name in METHOD_BITS},
    **{name: _fetched(name) for name in ("getitem", "reversed", "round")},
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


_CLASS_ATTRIBUTES = {  # every class has these: they would hide the object's
    name: property(functools.partial(_ask, operation="get", question=name)) for name in ("__doc__", "__annotations__")
}


class JudgeObjects(SharedObjects):
    """The judge's table of shared objects, and the proxies of one session."""

    longest_range_sent = sys.maxsize

    def __init__(self, session: GuestSession) -> None:
        super().__init__()
        self._session = session
        self._proxies: weakref.WeakValueDictionary[int, ProxyObject] = weakref.WeakValueDictionary()
        self._classes: dict[tuple[str, int], type[ProxyObject]] = {}

    def proxy(self, payload: Wire, current_session: Callable[[], GuestSession]) -> ProxyObject:
        """Return the proxy for a reference [name or number, type name, abilities, hash]. Raises ProtocolError."""
        if len(payload) != 4:
            raise ProtocolError("malformed reference")
        target, name, abilities, hash_value = payload
        # Exact types: a truth value is an int too.
        if type(target) not in (int, str) or type(name) is not str or type(abilities) is not int:
            raise ProtocolError("malformed reference")
        if not 0 <= abilities <= ALL_METHODS:
            raise ProtocolError("malformed reference")
        if hash_value is not None and (type(hash_value) is not int or not -(1 << 63) <= hash_value < 1 << 63):
            raise ProtocolError("malformed reference")
        name = clean_name(name)
        proxy = self._proxies.get(target)
        if proxy is None:
            kind = self._classes.get((name, abilities))
            if kind is None:
                if len(self._classes) >= _MAX_TYPES:
                    raise ProtocolError("objects of too many types")
                kind = self._classes[name, abilities] = proxy_class(name, abilities)
            proxy = object.__new__(kind)
            state = _ProxyState(current_session, target, abilities, hash_value)
            object.__setattr__(proxy, "__sandbox_proxy__", state)
            self._proxies[target] = proxy
        return proxy

    def resolve_reference(self, payload: Wire) -> ProxyObject:
        if type(payload[0]) is not int:
            raise ProtocolError("malformed reference")
        return self.proxy(payload, self._session.current_session)

    def attach_origin(self, value: Any, home: Wire) -> None:
        if home is not None:
            object.__setattr__(value, ORIGIN, self.resolve_reference(home))

    def resolve_name(self, name: str) -> Any:
        if name not in FROM_GUEST:
            raise ProtocolError("unexpected name")
        return FROM_GUEST[name]

    def encode_origin(self, value: Any) -> Wire:
        home = origin_of(value)
        if home is None:
            return None
        return self.encode_reference(home)

    def encode_reference(self, value: Any) -> Wire:
        if isinstance(value, ProxyObject):
            if session_of(value) is not self._session:
                raise UnsupportedValue("an object of the program was lost when its process ended")
            return {"h": [_state(value).target]}
        if value is Ellipsis or value is NotImplemented:
            return {"n": f"builtins:{value!r}"}
        if isinstance(value, Exception) and vars(builtins).get(type(value).__name__) is type(value):
            return {"e": [type(value).__name__, [encode(argument, self, 1) for argument in value.args]]}
        name = stdlib_name(value)
        if name is not None:
            return {"n": name}
        raise UnsupportedValue(f"{type(value).__name__} is not plain data")
