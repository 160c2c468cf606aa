"""Stand-ins in the judge for what lives in the guest: objects of the program, and its functions by name.

A `ProxyObject` can be called, iterated, measured, and its attributes can be used, as far as the object can (see
`abilities`). It has no word on whether the program's answer is right: it is neither equal to nor in order with plain
data, and arithmetic is allowed between two handles only, since `handle - expected` would hand the expected value to
the program. (Except where the test's text has an operator of an instance that it makes of the program's class, see
`instances`: `Vec(1, 2) * 3` is about the class's operators, and the verdict is marked as not trusted.) Two handles are
compared by the program itself where the test compares its objects with each other; the verdict is then marked as not
trusted. What is refused is noted, and a test that was refused something does not pass.

Each question (`len`, `str`, `float`, ...) is put once for each state of the program: until the test calls something
or sets something, the answer stays what it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..protocol.references import METHOD_BITS
from ..protocol.subclass_types import BINARY
from .evaluation_context import CONTEXT
from .text import clean_text

if TYPE_CHECKING:
    from .guest_session import GuestSession

_OF_FUNCTIONS = frozenset(
    f"__{name}__"
    for name in ("name", "qualname", "dict", "wrapped", "defaults", "kwdefaults", "members", "bases", "mro")
)
"""Special attributes that are data and can be asked for like others."""


class SessionProvider(Protocol):
    """Where an object lives: a session, or whatever session is the current one."""

    def open_session(self) -> GuestSession: ...


class ProxyObject:
    """See the module. Its class, made for it, has the name of the object's and the methods it can answer to."""

    __slots__ = ("__answers", "__hash", "__mask", "__place", "__state", "__target", "__weakref__")

    def __new__(cls, *arguments: Any, **keywords: Any) -> ProxyObject:
        raise CONTEXT.refuse(f"the class of {_named(cls)} is not here to be called")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name not in _OF_FUNCTIONS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.__place.open_session().value("get", self.__target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__place.open_session().changing("set", self.__target, name, values=[value])

    def __delattr__(self, name: str) -> None:
        self.__place.open_session().changing("delete", self.__target, name)

    def __str__(self) -> Any:
        return _ask(self, "operate", "str")

    def __repr__(self) -> Any:
        return _ask(self, "operate", "repr")

    def __format__(self, form: str) -> Any:
        return self.__place.open_session().value("operate", "format", values=[self, form])

    def __bool__(self) -> Any:
        return _ask(self, "operate", "truth") if self.__mask & (METHOD_BITS["bool"] | METHOD_BITS["len"]) else True

    def __hash__(self) -> int:
        if not self.__mask & METHOD_BITS["hash"]:
            return object.__hash__(self)
        if self.__hash is None:
            raise TypeError(f"unhashable type: {type(self).__name__!r}")
        return self.__hash

    def __eq__(self, other: object) -> Any:
        return _compared(self, other, "eq")

    def __ne__(self, other: object) -> Any:
        return _compared(self, other, "ne")

    def __lt__(self, other: object) -> Any:
        return _compared(self, other, "lt")

    def __le__(self, other: object) -> Any:
        return _compared(self, other, "le")

    def __gt__(self, other: object) -> Any:
        return _compared(self, other, "gt")

    def __ge__(self, other: object) -> Any:
        return _compared(self, other, "ge")


class _Methods:
    """What a handle's class gets of these depends on the object."""

    def call(self, *arguments: Any, **keywords: Any) -> Any:
        return provider_of(self).open_session().call(target_of(self), None, arguments, keywords)

    def iter(self) -> Any:
        if abilities_of(self) & METHOD_BITS["self"]:
            return self
        return provider_of(self).open_session().value("operate", "iter", values=[self])

    def next(self) -> Any:
        (item,) = next_items(self, 1) or _stop(self)
        return item

    def getitem(self, key: Any) -> Any:
        return provider_of(self).open_session().value("operate", "getitem", values=[self, key])

    def setitem(self, key: Any, value: Any) -> None:
        provider_of(self).open_session().changing("operate", "setitem", values=[self, key, value])

    def delitem(self, key: Any) -> None:
        provider_of(self).open_session().changing("operate", "delitem", values=[self, key])

    def contains(self, item: Any) -> bool:
        if _is_operand(self):
            return bool(provider_of(self).open_session().value("operate", "contains", values=[self, item]))
        if not abilities_of(self) & METHOD_BITS["iter"]:
            raise CONTEXT.refuse(f"whether something is in {describe(self)} cannot be left to the program")
        return any(found is item or found == item for found in iter(self))  # type: ignore[call-overload]

    def enter(self) -> Any:
        return provider_of(self).open_session().call(target_of(self), "__enter__", (), {})

    def exit(self, *error: object) -> None:
        provider_of(self).open_session().call(target_of(self), "__exit__", (None, None, None), {})

    def reversed(self) -> Any:
        return provider_of(self).open_session().value("operate", "reversed", values=[self])

    def round(self, *digits: Any) -> Any:
        return provider_of(self).open_session().value("operate", "round", values=[self, *digits])


def _stop(handle: Any) -> Any:
    raise StopIteration(object.__getattribute__(handle, "_ProxyObject__answers").pop("returned", None))


def next_items(handle: Any, most: int) -> tuple[Any, ...]:
    """The next items of an iterator; fewer than `most`, none say, at its end."""
    session = provider_of(handle).open_session()
    answer = session.changing("next", target_of(handle), most)
    if type(answer) is not tuple or [type(part) for part in answer[:2]] != [tuple, bool] or len(answer) != 3:
        raise session.fail("crash", "ProtocolError", "malformed items")
    items, ended, returned = answer
    if len(items) > most or (len(items) < most) is not ended:
        raise session.fail("crash", "ProtocolError", "malformed items")
    object.__getattribute__(handle, "_ProxyObject__answers")["returned"] = returned
    return items  # type: ignore[no-any-return]


def drained(value: Any) -> Any:
    """For what takes all items anyway, `list(...)` say: they come many at a time."""
    if not isinstance(value, ProxyObject) or not hasattr(type(value), "__iter__"):
        return value
    iterator = iter(value)
    if not isinstance(iterator, ProxyObject) or not hasattr(type(iterator), "__next__"):
        return iterator
    items: list[Any] = []
    most = 16
    while len(found := next_items(iterator, most)) == most:
        items += found
        most = min(2 * most, 4096)
    return [*items, *found]


@functools.lru_cache(maxsize=512)
def proxy_class(name: str, mask: int) -> type[ProxyObject]:
    """The class of handles for objects of one type."""
    methods = {
        f"__{ability}__": _METHODS[ability]
        for ability, bit in METHOD_BITS.items()
        if mask & bit and ability in _METHODS
    }
    text = clean_text(name, 80) or "?"
    own: dict[str, Any] = {"__slots__": (), "__module__": "solution"}
    # Every class has these two, so they would be found before the object's.
    own |= {name: property(functools.partial(_asked, question=name)) for name in ("__doc__", "__annotations__")}
    return type(text, (ProxyObject,), {**methods, **own})


def _asked(handle: Any, question: str) -> Any:
    return _ask(handle, "get", question)


def make_proxy(
    kind: type[ProxyObject], place: SessionProvider, target: str | int, mask: int, hash_value: int | None
) -> ProxyObject:
    made = object.__new__(kind)
    own = object.__setattr__
    own(made, "_ProxyObject__place", place)
    own(made, "_ProxyObject__target", target)
    own(made, "_ProxyObject__mask", mask)
    own(made, "_ProxyObject__hash", hash_value)
    own(made, "_ProxyObject__answers", {})
    own(made, "_ProxyObject__state", -1)
    return made


def provider_of(handle: Any) -> SessionProvider:
    return object.__getattribute__(handle, "_ProxyObject__place")  # type: ignore[no-any-return]


def target_of(handle: Any) -> str | int:
    return object.__getattribute__(handle, "_ProxyObject__target")  # type: ignore[no-any-return]


def abilities_of(handle: Any) -> int:
    return object.__getattribute__(handle, "_ProxyObject__mask")  # type: ignore[no-any-return]


def _is_operand(handle: Any) -> bool:
    """Whether the program may be asked about the operator that is being evaluated; if so, its word is noted."""
    found = any(handle is operand for operand in CONTEXT.operands)
    CONTEXT.untrusted |= found
    return found


def _named(kind: type) -> str:
    return f"an object of the program's type {kind.__name__}"


def describe(handle: Any) -> str:
    return _named(type(handle))


def _ask(handle: Any, operation: str, question: str) -> Any:
    """Put a question, or tell again what was answered in this state of the program."""
    session = provider_of(handle).open_session()
    answers = object.__getattribute__(handle, "_ProxyObject__answers")
    if object.__getattribute__(handle, "_ProxyObject__state") != session.state:
        answers.clear()
        object.__setattr__(handle, "_ProxyObject__state", session.state)
    if question not in answers:
        try:
            if operation == "get":
                answers[question] = session.value("get", target_of(handle), question), None
            else:
                answers[question] = session.value("operate", question, values=[handle]), None
        except Exception as error:
            answers[question] = None, error
    answer, raised = answers[question]
    if raised is not None:
        raise raised
    return answer


def _compared(left: Any, right: Any, operator: str) -> Any:
    if isinstance(right, ProxyObject):
        session = provider_of(left).open_session()
        if session.decoding:
            return (left is right) is (operator == "eq")  # two keys of one dict
        if not CONTEXT.compares:
            raise CONTEXT.refuse(f"{describe(left)} is not plain data, so it cannot be compared here")
        CONTEXT.untrusted = True
        return session.value("operate", operator, values=[left, right])
    if not abilities_of(left) & METHOD_BITS["eq" if operator == "ne" else operator]:
        return NotImplemented  # as the object would say: it has no such method
    raise CONTEXT.refuse(f"{describe(left)} is not plain data, so it cannot be compared")


def _unary(question: str) -> Callable[[Any], Any]:
    return lambda handle: _ask(handle, "operate", question)


def _binary(operator: str, mirrored: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not _is_operand(self) and not isinstance(other, ProxyObject):
            raise CONTEXT.refuse(f"{describe(self)} cannot be combined with plain data here")
        values = [other, self] if mirrored else [self, other]
        return provider_of(self).open_session().changing("operate", operator, values=values)

    return method


_METHODS: dict[str, Any] = {
    **{name: method for name, method in vars(_Methods).items() if name in METHOD_BITS},
    **{name: _unary(name) for name in ("len", "int", "float", "complex", "index", "abs", "neg", "pos", "invert")},
}
for _name in BINARY:
    _function = f"{_name}_" if _name in ("and", "or") else _name
    setattr(ProxyObject, f"__{_name}__", _binary(_function))
    setattr(ProxyObject, f"__i{_name}__", _binary(f"i{_name}"))
    setattr(ProxyObject, f"__r{_name}__", _binary(_function, mirrored=True))
del _name, _function
