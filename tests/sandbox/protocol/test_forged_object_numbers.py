"""Hostile claims of a guest about objects that it shares with the judge."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import time
import weakref
from collections import namedtuple
from typing import Any

import pytest

from marl_ray.sandbox.inside.protocol.encoding import MUTABLE, ProtocolError
from marl_ray.sandbox.inside.protocol.shared_objects import _MAX_NODES, SharedObjects
from tests.sandbox.protocol.sides import Sides


@pytest.mark.parametrize(
    "claim",
    [
        None,
        0,
        {},
        [[]],
        [[0]],
        [0, []],
        [["0", []]],
        [[True, []]],
        [[0.0, []]],
        [[-1, []]],
        [[99, []]],
        [[10**30, []]],
        [[None, []]],
        [[0, {}]],
        [[0, None]],
        [[0, "61"]],
        [[0, 5]],
        [[0, [{"@": 99}]]],
        [[0, [{"@": -1}]]],
        [[0, [{"@": True}]]],
        [[0, [{"h": [0, "T", 0, None]}]]],
        [[2, [1, 2]]],
        [[2, [[1]]]],
        [[2, [[[], 1]]]],
        [[3, [[]]]],
        [[3, [{"d": []}]]],
        [[4, [1]]],
        [[4, "zz"]],
        [[5, []]],
        [[5, "00"]],
    ],
)
def test_false_claims_raise_a_protocol_error(claim: Any) -> None:
    judge = SharedObjects()
    mine = [[0], (), {1: 2}, {3}, bytearray(b"x"), float("nan")]
    judge.encode_values(mine)
    judge.take_snapshot()
    assert [type(entry.value) for entry in judge._entries.values()] == [list, list, dict, set, bytearray, float]
    with pytest.raises(ProtocolError):
        judge.apply_changes(claim)


def test_only_objects_that_were_sent_can_be_changed() -> None:
    judge = SharedObjects()
    secret, given_list = ["expected"], [0]
    judge.encode_values(given_list)
    judge.take_snapshot()
    for number in range(1, 50):
        with pytest.raises(ProtocolError):
            judge.apply_changes([[number, ["forged"]]])
    judge.apply_changes([[0, ["forged"]]])
    assert (secret, given_list) == (["expected"], ["forged"])


def test_an_object_keeps_its_type() -> None:
    judge = SharedObjects()
    things = [kind() for kind in sorted(MUTABLE, key=str)]
    judge.encode_values(*things)
    judge.take_snapshot()
    kinds = [type(thing) for thing in things]
    for number in range(len(things)):
        for content in ([], [[1, 2]], [1], "00", [["a", "b"]]):
            try:
                judge.apply_changes([[number, copy.deepcopy(content)]])
            except ProtocolError:
                continue
    assert [type(thing) for thing in things] == kinds


def laughs(depth: int, width: int, number: int = 0) -> Any:
    """Return nested references to the same lists: small when encoded, `width ** depth` items when expanded."""
    return [laughs(depth - 1, width, number + 1), *[{"@": number + 1}] * (width - 1)] if depth else [1]


def test_values_that_expand_exponentially_are_rejected() -> None:
    started = time.monotonic()
    for wire in (laughs(12, 10), laughs(50, 2), [*laughs(4, 10), {"@": 0}]):
        with pytest.raises(ProtocolError):
            SharedObjects().decode_value(wire)
    assert SharedObjects().decode_value(laughs(3, 10)) == [[[[1]] * 10] * 10] * 10
    judge = SharedObjects()
    judge.decode_value([1])
    levels = 1
    with contextlib.suppress(ProtocolError):  # step by step
        while levels < 50:
            judge.decode_value([{"@": judge.next_number - 1}] * 10)
            levels += 1
    assert levels < 10
    judge = SharedObjects()
    judge.encode_values([[] for _ in range(50)])
    judge.take_snapshot()
    changed = 50
    with contextlib.suppress(ProtocolError):  # by changes
        for number in range(49, 1, -1):
            judge.apply_changes([[number - 1, [{"@": number}] * 10]])
            changed = number
    assert changed > 40
    assert time.monotonic() - started < 20


def test_containers_of_changed_objects_count_as_well() -> None:
    """Count the unchanged lists that contain a changed object; every change itself is small."""
    judge = SharedObjects()
    chain: list[Any] = [[] for _ in range(30)]
    judge.encode_values(*chain)
    judge.take_snapshot()
    for number in range(6):
        judge.apply_changes([[number, [{"@": number + 1}] * 10]])
        judge.take_snapshot()
    with pytest.raises(ProtocolError):
        judge.apply_changes([[6, [{"@": 7}] * 10]])
    judge = SharedObjects()
    rows = [[0]] * 1000
    judge.encode_values(rows)
    judge.take_snapshot()
    with pytest.raises(ProtocolError):
        judge.apply_changes([[1, [0] * 10_000]])


def test_large_values_without_repetition_are_accepted() -> None:
    sides = Sides()
    large: list[Any] = [0] * (_MAX_NODES + 1)
    circle: list[Any] = [1]
    circle.append(circle)
    sides.send(circle, [large])
    (theirs,) = sides.send(circle)
    theirs.append(2)
    sides.send(back=True)
    assert circle[2] == 2


def test_classes_are_cached_by_cleaned_name_per_program() -> None:
    program = SharedObjects()
    for wire in ({"S": ["T" * 5000 + "?", 1, 0, None]}, {"N": ["P" * 5000 + "?", ["x"], [1], 0, None]}):
        wires = [json.loads(json.dumps(wire).replace("?", end)) for end in "ab"]
        one, other = (type(program.decode_value(wire)) for wire in wires)
        assert one is other
        assert len(one.__name__) == 100
        made = weakref.ref(one)
        program = SharedObjects()
        del one, other
        gc.collect()
        assert made() is None
    for fields in (["x" * 101], [f"x{n}" for n in range(256)], ["x", "x"], ["x", []]):
        with pytest.raises(ProtocolError):
            program.decode_value({"N": ["P", fields, [1] * len(fields), 0, None]})
    long = namedtuple("long", ["x" * 101])
    assert Sides().send(long(1)) == [(1,)]
