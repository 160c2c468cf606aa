"""Shared objects: both sides stay equal after any mix of messages and changes."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.sandbox.inside.protocol.encoding import ProtocolError, UnsupportedValue
from tests.sandbox.protocol.sides import Sides

Pair = namedtuple("Pair", "left right")


class Stack(list):  # type: ignore[type-arg]
    """A class defined by a program."""


def test_identity_is_preserved_on_the_other_side() -> None:
    sides = Sides()
    inner: list[Any] = [1]
    mine = {"a": inner, "b": (inner, deque([inner])), "c": Stack(), "n": float("nan")}
    (theirs,) = sides.send(mine)
    assert theirs["a"] is theirs["b"][0] is theirs["b"][1][0]
    assert sides.send(theirs["a"], theirs, back=True)[0] is inner
    assert sides.send(inner, mine["n"])[0] is theirs["a"]
    assert [theirs["n"]] == sides.send([mine["n"]])[0], "lists of the same NaN are equal"
    assert sides.send(math.nan)[0] is math.nan


def test_changes_reach_the_other_side() -> None:
    sides = Sides()
    mine: list[Any] = [[1], {2: 3}, {4}, bytearray(b"a"), deque([5]), Counter("b"), OrderedDict(c=1, d=2)]
    mine += [defaultdict(None), Stack([6]), [0] * 3]
    (theirs,) = sides.send(mine)
    theirs[0].append(theirs[0][0])
    theirs[1].clear()
    theirs[2].add(5)
    theirs[3].extend(b"b")
    theirs[4].appendleft(1)
    theirs[5]["b"] += 1
    theirs[6].move_to_end("c")
    theirs[7]["new"] = [theirs[0]]
    theirs[8].append(7)
    theirs[9][1] = Pair(1, theirs[1])
    parts = list(mine)
    sides.send(back=True)
    assert mine[:6] == [[1, 1], {}, {4, 5}, bytearray(b"ab"), deque([1, 5]), Counter("bb")]
    assert (list(mine[6]), mine[7], mine[8]) == (["d", "c"], {"new": [[1, 1]]}, [6, 7])
    assert all(part is before for part, before in zip(mine, parts, strict=True))
    assert mine[7]["new"][0] is mine[0]
    assert mine[9][1].right is mine[1]
    mine[1]["x"] = mine[9]
    del mine[8][:]
    sides.send()
    assert (theirs[1]["x"] is theirs[9], theirs[8]) == (True, [])


def test_a_bytearray_changes_in_place_under_its_views() -> None:
    sides = Sides()
    mine = bytearray(2)
    with memoryview(mine) as view:
        (theirs,) = sides.send(mine)
        theirs[0] = 1
        sides.send(back=True)
        assert bytes(view) == b"\1\0"
    theirs.extend(b"ab")
    sides.send(back=True)
    assert mine == b"\1\0ab"


def test_unreferenced_objects_are_dropped_after_their_last_change() -> None:
    sides = Sides()
    (theirs,) = sides.send([[1], [2]])
    sides.collect()
    assert sides.here._entries == {}
    mine = sides.send(theirs, back=True)
    assert mine == [[[1], [2]]]
    mine[0][0].append(3)
    del mine
    sides.send()
    sides.collect()
    assert theirs == [[1, 3], [2]], "changed before it was dropped"
    assert sides.here._entries == sides.there._entries == {}


def test_a_failed_message_registers_no_object() -> None:
    sides = Sides()
    mine = [1]
    sides.send(mine)
    first = sides.here.next_number
    mine.append(2)
    assert sides.here.pending_changes() == [[0, [1, 2]]]
    with pytest.raises(UnsupportedValue):
        sides.here.encode_values([3], object())
    sides.here.roll_back(first)
    assert sides.here.next_number == first
    assert sides.send([4]) == [[4]]
    assert [entry.value for entry in sides.there._entries.values() if entry.value != [4]] in ([], [[1, 2]])
    assert sides.send(mine) == [[1, 2]]


leaves = st.integers(-5, 5) | st.text(max_size=2) | st.none()
steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "pop", "set", "nest", "clear"]),
        st.integers(0, 20),
        st.integers(0, 20),
        leaves,
        st.booleans(),
    ),
    max_size=25,
)


def containers(root: Any) -> list[Any]:
    """Return every reachable list and dict in a fixed order."""
    found, todo = [], [root]
    while todo:
        value = todo.pop(0)
        if type(value) in (list, dict) and not any(value is other for other in found):
            found.append(value)
            todo += value if type(value) is list else list(value.values())
    return found


def shape(root: Any) -> Any:
    """Return the content and identity of every reachable object."""
    known = containers(root)
    numbers = {id(value): number for number, value in enumerate(known)}
    names = [list(value.items() if type(value) is dict else enumerate(value)) for value in known]
    return [
        [(key, ("@", numbers[id(item)]) if id(item) in numbers else item) for key, item in pairs] for pairs in names
    ]


@settings(max_examples=300, deadline=None)
@given(steps)
def test_both_sides_stay_equal(script: list[Any]) -> None:
    sides = Sides()
    mine: Any = [[1], {"k": []}]
    (theirs,) = sides.send(mine)
    for action, at, other, leaf, back in script:
        known = containers(theirs if back else mine)
        chosen, second = known[at % len(known)], known[other % len(known)]
        keys = list(range(len(chosen))) if type(chosen) is list else list(chosen)
        if action == "append" and type(chosen) is list:
            chosen.append(leaf)
        elif action == "append":
            chosen[leaf] = [leaf]
        elif action in ("set", "nest") and keys:
            chosen[keys[at % len(keys)]] = leaf if action == "set" else second
        elif action == "pop" and keys:
            chosen.pop(keys[-1])
        elif action == "clear":
            chosen.clear()
        try:
            sides.send(back=back)
        except (UnsupportedValue, ProtocolError):
            return  # refused: it expands to too many nodes
        assert shape(mine) == shape(theirs)


def test_a_list_may_contain_itself() -> None:
    sides = Sides()
    mine: list[Any] = [1]
    mine.append(mine)
    (theirs,) = sides.send(mine)
    assert theirs[1] is theirs
    theirs.append({"k": theirs})
    sides.send(back=True)
    assert mine[2]["k"] is mine
