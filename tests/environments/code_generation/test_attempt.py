"""Each response is parsed once, however many joint actions contain it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from marl_ray.core.episode import Task
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.environments.code_generation import attempt as module
from marl_ray.sandbox import ExecutionReport, TestResult

TASK = Task("t", "import re\n\ndef f(x):\n    '''Do.'''\n", {"entry_point": "f", "tests": ("assert f(1)",)})
REPORT = ExecutionReport((TestResult("pass", None, None, None, "assert f(1)"),), None, "", 0.0, 0.0, "none", True)


@pytest.fixture
def caches() -> tuple[Any, ...]:
    """The caches of the preamble, helpers and main; empty at first."""
    found = (module._cached_preamble, module._cached_function, module._main)
    for cached in found:
        cached.cache_clear()
    return found


def test_an_attempt_parses_each_response_once(caches: tuple[Any, ...]) -> None:
    environment = CodeGeneration(3)
    responses = ["def aux_1(x):\n    return x", "def aux_2(x):\n    return x", "def f(x):\n    return aux_1(x) + 1"]
    attempt = environment.attempt(TASK, responses, last=False)
    outcome = environment.outcome(attempt, REPORT)
    for agent in range(3):
        environment.feedback(attempt, outcome, "level_feedback", agent)
    assert attempt.answers
    environment.question(TASK, attempt)
    assert len(environment.probes(attempt, REPORT)) == 8
    assert [cached.cache_info().misses for cached in caches] == [1, 2, 1]


def test_a_response_in_many_joint_actions_is_parsed_once(caches: tuple[Any, ...]) -> None:
    environment = CodeGeneration(2)
    helpers = [f"def aux(x):\n    return x + {n}" for n in range(3)]
    mains = [f"def f(x):\n    return aux(x) + {n}" for n in range(3)]
    cross = [environment.attempt(TASK, both, last=True) for both in itertools.product(helpers, mains)]
    assert len({attempt.program.source for attempt in cross}) == 9
    assert [cached.cache_info().misses for cached in caches] == [1, 3, 3]


def test_an_entry_point_with_the_name_of_the_helper_is_main() -> None:
    task = Task("t", "Do.", {"entry_point": "aux", "tests": ("assert aux(1)",)})
    text = "def aux(x):\n    return aux(x) + 1"
    attempt = CodeGeneration(2).attempt(task, [text, text], last=True)
    assert attempt.use.called == {"aux"}
