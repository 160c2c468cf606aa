"""Random numbers are a function of the seed and the stream's name."""

from __future__ import annotations

from marl_ray.core.random_streams import random_stream, stream_seed


def test_streams_are_named_and_repeatable() -> None:
    assert stream_seed(1, "a", 2) == stream_seed(1, "a", 2)
    assert len({stream_seed(s, n, k) for s in (1, 2) for n in ("a", "b") for k in (0, 1)}) == 8
    assert 0 <= stream_seed(7, "x") < 2**62
    assert random_stream(3, "h").random() == random_stream(3, "h").random()
