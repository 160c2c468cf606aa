"""The value codec: values survive encoding and decoding, and hostile input is rejected."""

from __future__ import annotations

import datetime
import json
import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.sandbox.inside.protocol.decoding import decode
from marl_ray.sandbox.inside.protocol.encoding import MAX_DEPTH, CodecContext, ProtocolError, UnsupportedValue, encode
from marl_ray.sandbox.inside.protocol.messages import RECURSION
from tests.sandbox.strategies import wires

FUZZ = settings(max_examples=400, deadline=None)
PLAIN = (
    *(Counter, OrderedDict, defaultdict),
    *(type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, range, deque),
    *(Decimal, Fraction, datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
    slice,
)

hashables = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(2**200), 2**200),
        st.floats(allow_nan=False),
        st.complex_numbers(allow_nan=False),
        st.text(),
        st.text(st.characters(categories=["Cs", "Cc", "Lu"])),
        st.binary(max_size=40),
        st.fractions(),
        st.decimals(allow_nan=False, min_value=Decimal(-(10**50)), max_value=Decimal(10**50)),
        st.dates(),
        st.datetimes(timezones=st.none() | st.just(datetime.UTC)).map(lambda time: time.replace(fold=0)),
        st.times().map(lambda time: time.replace(fold=0)),  # fold is lost; equality ignores it
        st.timedeltas(),
        st.builds(range, st.integers(-99, 99), st.integers(-99, 99), st.integers(1, 9)),
    ),
    lambda inner: st.one_of(st.tuples(inner), st.tuples(inner, inner), st.frozensets(inner, max_size=4)),
    max_leaves=6,
)
values = st.recursive(
    hashables,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.tuples(inner, inner),
        st.sets(hashables, max_size=5),
        st.dictionaries(hashables, inner, max_size=5),
        st.lists(inner, max_size=4).map(deque),
        st.lists(inner, max_size=4).map(lambda items: deque(items, maxlen=3)),
        st.dictionaries(hashables, inner, max_size=4).map(OrderedDict),
        st.dictionaries(hashables, inner, max_size=4).map(lambda items: defaultdict(None, items)),
        st.lists(hashables, max_size=6).map(Counter),
        st.binary(max_size=20).map(bytearray),
    ),
    max_leaves=20,
)


def round_trip(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))))


def same(left: Any, right: Any) -> bool:
    """Return whether two values are equal and of the same types at every depth (1, 1.0 and True differ)."""
    if type(left) is not type(right):
        return False
    if isinstance(left, deque) and left.maxlen != right.maxlen:
        return False
    if isinstance(left, list | tuple | deque):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left), list(right)) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, set | frozenset):
        return left == right and {type(item) for item in left} == {type(item) for item in right}
    return repr(left) == repr(right)


def all_plain(value: Any) -> bool:
    """Return whether a value contains only exact builtin types and classes created by the judge."""
    if type(value) not in PLAIN and type(value).__module__ != "solution":
        return False
    if isinstance(value, slice):
        return all(map(all_plain, (value.start, value.stop, value.step)))
    if isinstance(value, list | tuple | set | frozenset | deque):
        return all(map(all_plain, value))
    return not isinstance(value, dict) or all(all_plain(part) for pair in value.items() for part in pair)


@FUZZ
@given(values)
def test_values_survive_a_round_trip(value: Any) -> None:
    assert same(round_trip(value), value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, -0.0, Decimal("Infinity"), 2**61, -(2**62), 2**62, 2**63, ""])
def test_edge_cases_survive_a_round_trip(value: Any) -> None:
    assert same(round_trip([value]), [value])


def test_nan_survives_a_round_trip() -> None:
    assert math.isnan(round_trip(math.nan))
    assert round_trip(Decimal("NaN")).is_nan()


@FUZZ
@given(wires)
def test_any_json_decodes_to_plain_data_or_a_protocol_error(wire: Any) -> None:
    try:
        value = decode(wire)
    except ProtocolError:
        return
    assert all_plain(value)


@pytest.mark.parametrize(
    "wire",
    [
        {"h": [0, "T", False]},
        {"i": 5},
        {"i": "0x" + "g"},
        {"t": "ab"},
        {"d": [[1]]},
        {"d": [[[], 1]]},
        {"s": [[]]},
        {"b": "0"},
        {"c": [1]},
        {"r": ["0", "f" * 400, "1"]},
        {"r": ["0", "5", "0"]},
        {"D": "1e999999999"},
        {"D": "9" * 10**6},
        {"F": ["1", "0"]},
        {"F": ["f" * 10**6, "3"]},
        {"td": [10**30, 0, 0]},
        {"dt": "0000-00-00"},
        {},
        {"t": [], "s": []},
        {"unknown": []},
        {"@": 0},
        {"n": "builtins:int"},
        {"n": "os:system"},
        {"q": [[1], -1]},
        {"q": [[1], True]},
        {"f": [None]},
        {"x": 1},
        {"N": ["P", ["x"], [1, 2], 0, None]},
        {"N": ["P", ["x", "x"], [1, 2], 0, None]},
        {"N": ["P", ["__class__"], [1], 0, None]},
        {"N": ["P", ["x=1): pass\nimport os #"], [1], 0, None]},
        {"N": ["P", [["x"]], [1], 0, None]},
        {"N": [1, ["x"], [1], 0, None]},
        {"S": ["L", True, 0, None]},
        {"S": ["L", None, 0, None]},
        {"S": ["L", {"S": ["L", 1, 0, None]}, None]},
        {"S": ["L", {"D": "1"}, 0, None]},
        {"S": [[], 1, 0, None]},
        {"S": ["L", 1, [0, "T", 0, None]]},
        {"S": ["L", {}, 0, None]},
        {"S": ["L", 1, -1, None]},
        {"S": ["L", 1, 1 << 40, None]},
        {"S": ["L", 1, None]},
        {"N": ["P", ["x"], [1], True, None]},
        {"sl": [1, 2]},
        {"r": ["f" * 30_000, "0", "7"]},
        {"e": ["ValueError", []]},
    ],
)
def test_hostile_input_is_rejected(wire: Any) -> None:
    with pytest.raises(ProtocolError):
        decode(wire)


@pytest.fixture
def sandbox_recursion_limit() -> Iterator[None]:
    """Set the recursion limit of judge and guest, which the deepest values need."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("sandbox_recursion_limit")
def test_depth_is_bounded_in_both_directions() -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH + 5):
        deep = [deep]
    with pytest.raises(UnsupportedValue):
        encode(deep)
    with pytest.raises(ProtocolError):
        decode(deep)
    kinds: tuple[Callable[[Any], Any], ...] = (lambda x: [x], lambda x: (x,), lambda x: {"k": x})
    for kind in kinds:
        allowed: Any = 1
        for _ in range(MAX_DEPTH - 1):
            allowed = kind(allowed)
        assert json.dumps(encode(decode(json.loads(json.dumps(encode(allowed)))))) == json.dumps(encode(allowed))
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    with pytest.raises(UnsupportedValue):
        encode(cyclic)


named = namedtuple("named", "x")


def methods_returning(answer: Any) -> dict[str, Any]:
    names = ["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__", "__contains__", "__str__"]
    names += ["__repr__", "__iter__", "__len__", "__getitem__", "__index__", "__float__", "__int__", "keys", "items"]
    return {**{name: lambda *a: answer for name in names}, "__hash__": lambda self: 0}


@pytest.mark.parametrize("base", [int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset, deque])
def test_only_base_value_and_name_of_a_subclass_cross(base: type) -> None:
    liar = type("Liar", (base,), methods_returning(True))
    honest = base([1, 2]) if base in (list, tuple, set, frozenset, deque) else base()
    lying = liar([1, 2]) if base in (list, tuple, set, frozenset, deque) else liar()
    made = round_trip(lying)
    assert (type(made).__name__, type(made).__bases__) == ("Liar", (base,))
    assert type(made).__eq__ is base.__eq__
    assert type(made).__bool__ is base.__bool__ if hasattr(base, "__bool__") else True
    assert base.__eq__(made, honest) is True


@pytest.mark.parametrize("fields", ["x y", "count index", "", "a b c d"])
def test_namedtuples_cross_with_their_fields(fields: str) -> None:
    kind = namedtuple("P", fields)
    value = kind(*range(len(kind._fields)))
    made = round_trip(value)
    assert (made, repr(made), made._fields) == (value, repr(value), value._fields)
    assert [getattr(made, name) for name in value._fields] == list(value)
    assert made._asdict() == value._asdict()


class References(CodecContext):
    """Encodes every object that is not plain data as reference 0."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def encode_reference(self, value: Any) -> Any:
        self.seen.append(value)
        return {"h": [0]}


@pytest.mark.parametrize("value", [object(), len, type, iter([1]), (x for x in [1]), 1j.__class__, NotImplemented, ...])
def test_objects_that_are_not_data_cross_only_as_references(value: Any) -> None:
    with pytest.raises(UnsupportedValue):
        encode([value])
    references = References()
    assert encode([value], references) == [{"h": [0]}]
    assert references.seen == [value]


@pytest.mark.usefixtures("sandbox_recursion_limit")
@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: (x,), lambda x: {1: x}, lambda x: deque([x])])
@pytest.mark.parametrize("leaf", [1, 2**80, "\ud800", b"b", (), [], named(1)])
def test_encoder_and_decoder_have_the_same_depth_limit(wrap: Any, leaf: Any) -> None:
    value = leaf
    for depth in range(1, MAX_DEPTH + 4):
        value = wrap(value)
        if depth < MAX_DEPTH - 4:
            continue
        try:
            wire = encode(value)
        except UnsupportedValue:
            continue
        assert decode(json.loads(json.dumps(wire))) == value
