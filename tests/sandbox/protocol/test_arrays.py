"""numpy arrays and scalars cross as data, and malformed ones are rejected."""

from __future__ import annotations

from typing import Any

import pytest

from marl_ray.sandbox.inside.protocol.decoding import decode
from marl_ray.sandbox.inside.protocol.encoding import ProtocolError, UnsupportedValue, encode
from tests.sandbox.protocol.sides import Sides

numpy = pytest.importorskip("numpy")


@pytest.mark.parametrize(
    "value",
    [
        *(numpy.arange(6).reshape(2, 3), numpy.array([]), numpy.array(2.5), numpy.array([True, False])),
        *(numpy.array(["ab", "ü"]), numpy.array([1 + 2j]), numpy.zeros((2, 0)), numpy.arange(8)[::3]),
        *(numpy.int64(-3), numpy.float64(0.1), numpy.float32(0.1), numpy.bool_(True), numpy.str_("ü"), numpy.uint8(7)),
    ],
    ids=repr,
)
def test_values_survive_a_round_trip(value: Any) -> None:
    made = decode(encode(value))
    assert type(made) is type(value)
    assert made.dtype == value.dtype
    assert made.shape == value.shape
    assert made.tolist() == value.tolist()


@pytest.mark.parametrize(
    "value",
    [numpy.array([object()]), numpy.datetime64("2024-01-01"), numpy.matrix([[1]]), numpy.zeros(1, [("a", "i4")])],
    ids=["objects", "datetime64", "matrix", "records"],
)
def test_other_arrays_are_not_data(value: Any) -> None:
    with pytest.raises(UnsupportedValue):
        encode(value)


@pytest.mark.parametrize(
    "payload",
    [
        ["|O", [1], "00" * 8],
        ["<i8", [1], "00"],
        ["<i8", [-1], "00" * 8],
        ["<i8", [True], "00" * 8],
        ["<i8", [0, 1 << 40], ""],
        ["<i8", [1] * 40, "00" * 8],
        ["<f16", [1], "00" * 16],
        ["<U1", [1], "ffffffff"],
        ["|S0", [5], ""],
        ["i4,i4", [1], "00" * 8],
        ["<i8", 1, "00" * 8],
        ["<i8", [1], 0],
        [[], [], []],
        ["<i8"],
    ],
    ids=str,
)
@pytest.mark.parametrize("tag", ["na", "ns"])
def test_malformed_arrays_are_rejected(payload: list[Any], tag: str) -> None:
    with pytest.raises(ProtocolError):
        decode({tag: payload})


def test_a_truth_value_has_two_values() -> None:
    made = decode({"na": ["|b1", [2], "0002"]})
    assert made.tobytes() == b"\0\1"


def test_changes_in_place_cross_both_ways() -> None:
    sides = Sides()
    here = numpy.zeros(2)
    (there,) = sides.send(here)
    there += 1
    sides.send(back=True)
    assert here.tolist() == [1, 1]
    here[0] = 5
    sides.send()
    assert there.tolist() == [5, 1]
