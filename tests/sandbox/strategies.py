"""Hypothesis strategies for malformed wire values."""

from __future__ import annotations

from hypothesis import strategies as st

_TAGS = ["i", "t", "s", "z", "d", "C", "O", "f", "b", "B", "c", "r", "D", "F", "dt", "da", "ti", "td", "q", "N", "S"]
_TAGS += ["sl", "e", "x", "n", "h", "@"]
_odd_texts = st.sampled_from(
    ["", "0x", "-0xff", "1e999999999", "NaN", "sNaN", "Infinity", "zz", "9" * 5000, "0x" + "f" * 30000, "2020-01-01"]
)
wires = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | _odd_texts,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.builds(lambda tag, payload: {tag: payload}, st.sampled_from(_TAGS), inner),
        st.builds(lambda tag, items: {tag: items}, st.sampled_from(_TAGS), st.lists(inner, max_size=3)),
        st.dictionaries(st.sampled_from(_TAGS) | st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=15,
)
"""JSON values in the shape of encoded values, with every tag and any payload."""
