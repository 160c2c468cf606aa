"""Mutable objects shared by judge and guest, with identity and in-place changes as in plain Python.

Each side has a copy of an object, and a table that assigns both copies the same number: both sides number objects in
the order of encoding and decoding. An object that the peer already has crosses as its number. The judge does not trust
the guest's numbers: an unknown number is a protocol violation, and content is decoded into the object's own type.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import arrays
from .decoding import decode, fill, guarded
from .encoding import CodecContext, ProtocolError, UnsupportedValue, Wire, base_of, contents, encode
from .references import named_tuple, subclass

_MAX_NODES = 1 << 21
"""Maximum number of nodes of a value after expanding shared references, in addition to the nodes that exist: ten lists
of ten references to the same lists, and so on, are small when encoded and in memory, and endless to compare."""
_MAX_CLASSES = 256
_PARENTS = (list, tuple, dict, set, frozenset, deque)
"""Types whose values have parts."""


@dataclass(slots=True, eq=False)
class _Entry:
    value: Any
    before: Any = None
    """Copy of the content that the peer knows; None until the message is complete."""


class SharedObjects(CodecContext):
    """The table of one side. A failed encoding undoes its numbering."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._entries: dict[int, _Entry] = {}
        self.next_number = 0
        self._nested = False
        """Whether an object may be referenced from several places."""
        self._sent: list[_Entry] = []
        # Classes are cached per program, because programs define them.
        self.subclass = functools.lru_cache(_MAX_CLASSES)(subclass)
        self.named_tuple = functools.lru_cache(_MAX_CLASSES)(named_tuple)

    def shared_number(self, value: Any) -> int | None:
        number = self._numbers.get(id(value))
        if number is None:
            self.register(value)
        else:
            self._nested = True
        return number

    def register(self, value: Any) -> None:
        # Before the table changes: either step may exhaust the stack.
        key = id(value)
        entry = _Entry(value)
        self._numbers[key] = self.next_number
        self._entries[self.next_number] = entry
        self.next_number += 1

    def resolve_shared(self, number: Wire) -> Any:
        entry = self._entries.get(number)
        if entry is None:
            raise ProtocolError("unexpected number")
        self._nested = True
        return entry.value

    def encode_values(self, *values: Any) -> list[Wire]:
        """Encode the values of one message. If this raises (see `encode`), nothing is numbered."""
        first = self.next_number
        try:
            wires = [encode(value, self) for value in values]
            if self._nested:
                check_shape(values)
        except BaseException:
            self.unregister_from(first)
            raise
        return wires

    def roll_back(self, first: int) -> None:
        """Undo a message that will not be sent; `first` is the next number before the message."""
        self.unregister_from(first)
        self._sent = []

    def unregister_from(self, first: int) -> None:
        """Remove the objects numbered from `first` on."""
        self.drop(range(first, self.next_number))
        self.next_number = first

    def take_snapshot(self) -> None:
        """Record the current contents as known to the peer."""
        # Objects that the last message has changed. New objects have no copy yet.
        for entry in self._sent:
            entry.before = _copy(entry.value)
        self._sent = []
        for entry in self._entries.values():
            if entry.before is None:
                entry.before = _copy(entry.value)

    def pending_changes(self) -> list[Wire]:
        """Return [number, content] of the objects that changed since the last snapshot."""
        first = self.next_number
        changed = {number: entry for number, entry in self._entries.items() if _changed(entry)}
        if not changed:
            return []
        try:
            changes = [[number, contents(entry.value, self)] for number, entry in changed.items()]
            if self._nested:
                check_shape(self._all())
        except BaseException:
            self.unregister_from(first)
            raise
        self._sent = list(changed.values())
        return changes

    def apply_changes(self, changes: Wire) -> None:
        """Apply the changes of the peer. Raises ProtocolError."""
        if type(changes) is not list:
            raise ProtocolError("malformed changes")
        for change in changes:
            if type(change) is not list or len(change) != 2 or type(change[0]) is not int:
                raise ProtocolError("malformed change")
            entry = self._entries.get(change[0])
            if entry is None:
                raise ProtocolError("change of an unknown object")
            base = base_of(entry.value)
            if base is None:
                raise ProtocolError("change of an unknown object")
            entry.before = None  # until the next snapshot: a change of the peer is none of this side
            if base is not bytearray and not arrays.is_array(entry.value):
                base.clear(entry.value)
            guarded(fill, entry.value, change[1], self, 1)
        if changes:
            self._check(self._all())

    def decode_value(self, wire: Wire) -> Any:
        """Decode a value of the peer. Raises ProtocolError."""
        value = decode(wire, self)
        self._check([value])
        return value

    def _all(self) -> list[Any]:
        """Return every object of the table, because unchanged objects may hold changed ones."""
        return [entry.value for entry in self._entries.values()]

    def _check(self, values: list[Any]) -> None:
        if self._nested:
            try:
                check_shape(values)
            except UnsupportedValue as error:
                raise ProtocolError(str(error)) from None

    def drop_unreferenced(self) -> list[int]:
        """Drop objects that only this table references; return their numbers, parents before their own children."""
        dropped = []
        for number, entry in list(self._entries.items()):
            if sys.getrefcount(entry.value) == 2:  # the entry and the argument of this call
                dropped.append(number)
                del self._entries[number], self._numbers[id(entry.value)]
                entry.value = entry.before = None
        self._nested = self._nested and bool(self._entries)
        return dropped

    def drop(self, numbers: Iterable[int]) -> None:
        """Remove objects, in particular objects that the peer has dropped; unknown numbers are ignored."""
        for number in numbers:
            entry = self._entries.pop(number, None)
            if entry is not None:
                self._numbers.pop(id(entry.value), None)
        self._nested = self._nested and bool(self._entries)


def _copy(value: Any) -> Any:
    """Copy the content of a container for `_changed`; () for immutable values."""
    if type(value) is list:
        return value[:]
    base = base_of(value)
    if base is None:
        return ()
    if base is bytearray:
        return bytes(memoryview(value))
    if arrays.is_array(value):
        return value.tobytes()
    if base is set:
        return set(set.__iter__(value))
    return _parts(value)


def _changed(entry: _Entry) -> bool:
    before = entry.before
    if before is None:
        return False
    # Identity, and not equality, which could call methods of the items.
    if type(before) is list:
        now = entry.value if type(entry.value) is list else _copy(entry.value)
        return len(now) != len(before) or not all(map(operator.is_, now, before))
    if type(before) is set:
        return set(map(id, set.__iter__(entry.value))) != set(map(id, before))
    if before == ():
        return False
    now = entry.value.tobytes() if arrays.is_array(entry.value) else bytes(memoryview(entry.value))
    return now != before  # type: ignore[no-any-return]


def check_shape(values: Any) -> None:
    """Raise UnsupportedValue for values with too many nodes after expanding shared references (see `_MAX_NODES`).

    The bound of a value that contains itself is a thousand times smaller, because Python compares such values until the
    recursion limit.
    """
    existing = 0
    sizes: dict[int, int] = {}
    circular: set[int] = set()
    open_: set[int] = set()
    todo: list[tuple[Any, list[Any] | None]] = [(value, None) for value in values]
    while todo:
        value, parents = todo.pop()
        key = id(value)
        if parents is not None:
            for part in map(id, parents):
                sizes[key] += sizes[part]
                if part in open_ or part in circular:
                    circular.add(key)
            open_.discard(key)
            most = _MAX_NODES // 1000 if key in circular else _MAX_NODES + existing
            if sizes[key] > most:
                raise UnsupportedValue("the value is too large once everything it refers to is written out")
        elif key not in sizes:
            parts = _parts(value)
            # Most lists hold plain values of one type, which takes a single look.
            kinds = {kind for kind in set(map(type, parts)) if issubclass(kind, _PARENTS)}
            parents = [part for part in parts if type(part) in kinds] if kinds else []
            sizes[key] = 1 + len(parts) - len(parents)
            existing += sizes[key]
            open_.add(key)
            todo.append((value, parents))
            todo += [(part, None) for part in parents]


def _parts(value: Any) -> list[Any]:
    base = base_of(value)
    if base is None:
        if isinstance(value, tuple):
            base = tuple
        elif isinstance(value, frozenset):
            base = frozenset
        else:
            return []
    if base is bytearray or arrays.is_array(value):
        return []
    if base in (dict, OrderedDict):
        return [*base.keys(value), *base.values(value)]
    return list(base.__iter__(value))
