"""Objects that judge and guest both have: what can be changed, by number, and what became of it.

A list that a test hands to a program is one object to both, in plain Python. Here each side has its own, and a table
that gives the two the same number: both count, in the same order, what is encoded and decoded. An object that the
other side has already crosses as its number, so identity and aliasing are as they would be; and with every request and
every answer goes the new content of those that have changed. The judge forgets an object when nothing but its table
holds it, and tells the guest.

To the judge a guest's numbers are claims: a number that is not in its table is a violation of the protocol, and the
content is decoded like any value, into the object's own type. What a program can do so is what it could do to its
arguments in plain Python.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections import OrderedDict, deque
from typing import Any

from .decoding import decode, fill, guarded
from .encoding import CodecContext, ProtocolError, UnsupportedValue, Wire, base_of, contents, encode
from .subclass_types import named_tuple, subclass

_MOST_NODES = 1 << 21
"""Nodes of a value with everything it refers to written out: ten lists of ten of the same lists, and so on, are small
on the wire and in memory and endless to compare. What there really is does not count.
"""

_MOST_CLASSES = 256


class _Entry:
    __slots__ = ("before", "first", "own", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.own = False
        """Whether this side has made it."""
        self.before: Any = None
        """A copy as the other side knows it; None until the message is complete."""
        self.first: Any = None
        """A copy from before the other side has changed it for the first time, of what is this side's own."""


class SharedObjects(CodecContext):
    """One side's table. Any failure to encode takes back what it has numbered."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._entries: dict[int, _Entry] = {}
        self._next = 0
        self._nested = False
        """Whether something may be in more than one place."""
        self._told: list[_Entry] = []
        # Classes are remembered as long as their program: they are of its making.
        self.subclass = functools.lru_cache(_MOST_CLASSES)(subclass)
        self.named_tuple = functools.lru_cache(_MOST_CLASSES)(named_tuple)

    # --- the codec's context ---

    def shared_number(self, value: Any) -> int | None:
        number = self._numbers.get(id(value))
        if number is None:
            self.register(value)
            self._entries[self._next - 1].own = True
        else:
            self._nested = True
        return number

    def register(self, value: Any) -> None:
        key, entry = id(value), _Entry(value)  # or neither, at the end of the stack
        self._numbers[key] = self._next
        self._entries[self._next] = entry
        self._next += 1

    def resolve_shared(self, number: Wire) -> Any:
        entry = self._entries.get(number)
        if entry is None:
            raise ProtocolError("unexpected number")
        self._nested = True
        return entry.value

    # --- values ---

    def encode_values(self, *values: Any) -> list[Wire]:
        """The wire forms of some values, in one message. Raises what `encode` does; then nothing has been numbered."""
        first = self._next
        try:
            wires = [encode(value, self) for value in values]
            if self._nested:
                check_shape(values)
        except BaseException:
            self.unregister_from(first)
            raise
        return wires

    def next_number(self) -> int:
        """Where the numbers stand."""
        return self._next

    def roll_back(self, first: int) -> None:
        """A message that began at this mark is not sent."""
        self.unregister_from(first)
        self._told = []

    def unregister_from(self, first: int) -> None:
        """Forget what has been numbered from `first` on."""
        for number in range(first, self._next):
            entry = self._entries.pop(number, None)
            if entry is not None:  # it may have been collected
                del self._numbers[id(entry.value)]
        self._next = first

    # --- changes ---

    def take_snapshot(self) -> None:
        """The other side has, or is about to get, everything as it is now."""
        if self._told:
            for entry in self._told:
                entry.before = _copy(entry.value)
            self._told = []
        for entry in self._entries.values():
            if entry.before is None:
                entry.before = _copy(entry.value)

    def pending_changes(self) -> list[Wire]:
        """[number, content] of what has changed since the other side has heard of it."""
        first = self._next
        changed = [(number, entry) for number, entry in self._entries.items() if _changed(entry)]
        if not changed:
            return []
        try:
            found = [[number, contents(entry.value, self)] for number, entry in changed]
            if self._nested:
                check_shape(self._all())
        except BaseException:
            self.unregister_from(first)
            raise
        self._told = [entry for _, entry in changed]
        return found

    def apply_changes(self, changes: Wire) -> None:
        """Take over what the other side has changed. Raises ProtocolError."""
        if type(changes) is not list:
            raise ProtocolError("malformed changes")
        for change in changes:
            if type(change) is not list or len(change) != 2 or type(change[0]) is not int:
                raise ProtocolError("malformed change")
            entry = self._entries.get(change[0])
            base = None if entry is None else base_of(entry.value)
            if entry is None or base is None:
                raise ProtocolError("change of an unknown object")
            if entry.own and entry.first is None:
                entry.first = entry.before
            entry.before = None
            if base is not bytearray:
                base.clear(entry.value)
            guarded(fill, entry.value, change[1], self, 1)
        if changes:
            self._check(self._all())

    def decode_value(self, wire: Wire) -> Any:
        """The value of a wire form. Raises ProtocolError."""
        value = decode(wire, self)
        self._check([value])
        return value

    def _all(self) -> list[Any]:
        """Every object of the table: what has not changed may hold what has."""
        return [entry.value for entry in self._entries.values()]

    def _check(self, values: list[Any]) -> None:
        if self._nested:
            try:
                check_shape(values)
            except UnsupportedValue as error:
                raise ProtocolError(str(error)) from None

    def drop_unreferenced(self) -> list[int]:
        """Forget what nobody else holds; gives the numbers. (Parents come before what only they hold.)"""
        dropped: list[int] = []
        if not self._entries:
            return dropped
        for number, entry in list(self._entries.items()):
            if sys.getrefcount(entry.value) == 2:  # the entry's, and this call's own
                dropped.append(number)
                del self._entries[number], self._numbers[id(entry.value)]
                entry.value = entry.before = None
        self._nested = self._nested and bool(self._entries)
        return dropped

    def changed_by_peer(self) -> list[tuple[Any, Any]]:
        """What the other side has changed of this one's own and somebody still holds, with a copy of what it was."""
        return [(entry.value, entry.first) for entry in self._entries.values() if entry.first is not None]

    def drop(self, numbers: list[int]) -> None:
        """The other side has forgotten these."""
        for number in numbers:
            entry = self._entries.pop(number, None)
            if entry is not None:
                self._numbers.pop(id(entry.value), None)
        self._nested = self._nested and bool(self._entries)


def _copy(value: Any) -> Any:
    """What tells whether the content is still the same; () for what cannot change."""
    if type(value) is list:
        return value[:]
    base = base_of(value)
    if base is None:
        return ()
    if base is bytearray:
        return bytes(memoryview(value))
    if base is list or base is deque:
        return list(base.__iter__(value))
    if base is set:
        return set(set.__iter__(value))
    return [*base.keys(value), *base.values(value)]


def restore(value: Any, before: Any) -> None:
    """Give a container the content of which this is the copy."""
    base = base_of(value)
    if base is bytearray:
        bytearray.__setitem__(value, slice(None), before)
        return
    base.clear(value)
    if base in (dict, OrderedDict):
        for key, item in zip(before[: len(before) // 2], before[len(before) // 2 :], strict=True):
            base.__setitem__(value, key, item)
    else:
        (base.update if base is set else base.extend)(value, before)


def _changed(entry: _Entry) -> bool:
    before = entry.before
    if before is None:
        return False
    if type(before) is list:
        now = entry.value if type(entry.value) is list else _copy(entry.value)
        return len(now) != len(before) or not all(map(operator.is_, now, before))
    if type(before) is set:
        return {id(item) for item in set.__iter__(entry.value)} != {id(item) for item in before}
    return before != () and bytes(memoryview(entry.value)) != before


def check_shape(values: Any) -> None:
    """Raises UnsupportedValue for values that are beyond _MOST_NODES when written out. A value that contains itself is
    compared to the depth at which Python gives up, so it may be a thousand times smaller.
    """
    there = 0
    sizes: dict[int, int] = {}
    circular: set[int] = set()
    open_: set[int] = set()
    todo: list[tuple[Any, list[Any] | None]] = [(value, None) for value in values]
    while todo:
        value, parents = todo.pop()
        key = id(value)
        if parents is not None:
            keys = [id(part) for part in parents]
            sizes[key] += sum(sizes[part] for part in keys)
            if any(part in open_ or part in circular for part in keys):
                circular.add(key)
            open_.discard(key)
            if sizes[key] > (_MOST_NODES // 1000 if key in circular else _MOST_NODES + there):
                raise UnsupportedValue("the value is too large once everything it refers to is written out")
        elif key not in sizes:
            parts = _parts(value)
            parents = _parents(parts)
            sizes[key] = 1 + len(parts) - len(parents)
            there += sizes[key]
            open_.add(key)
            todo.append((value, parents))
            todo += [(part, None) for part in parents]


_PARENTS = (list, tuple, dict, set, frozenset, deque)


def _parents(parts: list[Any]) -> list[Any]:
    """Those that have parts themselves."""
    kinds = {kind for kind in set(map(type, parts)) if issubclass(kind, _PARENTS)}
    return [part for part in parts if type(part) in kinds] if kinds else []


def _parts(value: Any) -> list[Any]:
    base = base_of(value)
    if base is None:
        base = tuple if isinstance(value, tuple) else frozenset if isinstance(value, frozenset) else None
    if base is None or base is bytearray:
        return []
    if base in (dict, OrderedDict):
        return [*base.keys(value), *base.values(value)]
    return list(base.__iter__(value))
