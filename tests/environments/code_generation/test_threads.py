"""Parsing answers and tests in several threads of one process, as a judge of programs does."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from marl_ray.environments.code_generation.extraction import parse
from marl_ray.sandbox import count_tests

EXPRESSION = "(a + (b[1] * (c.d - (e / f))))"
ANSWER = f"def f(a):\n    return {EXPRESSION}\n" * 20
TESTS = f"assert f({EXPRESSION})\n" * 20
ROUNDS = 30


@pytest.fixture
def threads_change_at_collections() -> Iterator[None]:
    """Collect garbage often, and let another thread run at each collection, as happens by chance."""

    def give_way(phase: str, info: object) -> None:
        time.sleep(0)

    before = gc.get_threshold()
    gc.callbacks.append(give_way)
    gc.set_threshold(10)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(give_way)


@pytest.mark.usefixtures("threads_change_at_collections")
def test_threads_parse_answers_and_tests_at_the_same_time() -> None:
    errors: list[SystemError] = []

    def repeat(work: Callable[[], object]) -> None:
        try:
            for _ in range(ROUNDS):
                work()
        except SystemError as error:
            errors.append(error)

    works = (lambda: parse(ANSWER), lambda: count_tests((TESTS,), "f"))
    threads = [threading.Thread(target=repeat, args=(work,)) for work in (*works, *works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
