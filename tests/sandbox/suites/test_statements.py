"""Parsing of tests in many threads."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from marl_ray.sandbox import count_tests


@pytest.fixture
def switching() -> Iterator[None]:
    """Switch threads whenever the garbage collector runs, so also during a conversion of a syntax tree."""
    thresholds = gc.get_threshold()

    def yield_thread(phase: str, info: dict[str, int]) -> None:
        time.sleep(0)

    gc.callbacks.append(yield_thread)
    gc.set_threshold(50)
    yield
    gc.callbacks.remove(yield_thread)
    gc.set_threshold(*thresholds)


def test_threads_can_parse_concurrently(switching: None) -> None:
    body = "[" + ", ".join(f"({n} + {n}) * -{n}" for n in range(60)) + "]"
    suites = [(f"assert f({number}) == {body}",) * 8 for number in range(24)]
    with ThreadPoolExecutor(8) as threads:
        counts = [threads.submit(count_tests, suite, "f", "asserts") for suite in suites]
        assert [count.result() for count in counts] == [8] * 24
