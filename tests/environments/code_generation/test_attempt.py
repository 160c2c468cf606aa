"""Responses are read once, and what was read is kept as long as somebody holds it."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from marl_ray.core.episode import Task
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.environments.code_generation import attempt as module
from marl_ray.sandbox import ExecutionReport, TestResult

TASK = Task("t", "import re\n\ndef f(x):\n    '''Do.'''\n", {"entry_point": "f", "tests": ("assert f(1)",)})
REPORT = ExecutionReport((TestResult("pass", None, None, None, "assert f(1)"),), None, "", 0.0, 0.0, "none", True)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each text was read."""
    counts: Counter[str] = Counter()

    def counted(name: str) -> None:
        real = getattr(module, name)

        def read(*arguments: Any) -> Any:
            counts[name] += 1
            return real(*arguments)

        monkeypatch.setattr(module, name, read)

    for name in ("contribution", "helper_use", "preamble"):
        counted(name)
    return counts


def test_an_attempt_reads_each_response_once(reads: Counter[str]) -> None:
    environment = CodeGeneration(3)
    responses = ["def aux_1(x):\n    return x", "def aux_2(x):\n    return x", "def f(x):\n    return aux_1(x) + 1"]
    attempt = environment.attempt(TASK, responses, last=False)
    outcome = environment.outcome(attempt, REPORT)
    for agent in range(3):
        environment.feedback(attempt, outcome, "level_feedback", agent)
    environment.previous_answers(attempt)
    environment.question(TASK, attempt)
    assert len(environment.probes(attempt, REPORT)) == 2
    assert reads == {"contribution": 3, "helper_use": 1, "preamble": 1}


def test_a_response_in_many_joint_actions_is_read_once(reads: Counter[str]) -> None:
    environment = CodeGeneration(2)
    helpers = [f"def aux(x):\n    return x + {n}" for n in range(3)]
    mains = [f"def f(x):\n    return aux(x) + {n}" for n in range(3)]
    cross = [environment.attempt(TASK, both, last=True) for both in itertools.product(helpers, mains)]
    assert len({attempt.program.source for attempt in cross}) == 9
    assert reads == {"contribution": 6, "helper_use": 3, "preamble": 1}
    # Nothing outlives the attempts that hold it.
    del cross[1:]
    environment.attempt(TASK, [helpers[0], mains[0]], last=True)
    assert reads["contribution"] == 6
    cross.clear()
    environment.attempt(TASK, [helpers[0], mains[0]], last=True)
    assert reads == {"contribution": 8, "helper_use": 4, "preamble": 2}


def test_a_main_that_is_called_like_a_helper_is_main() -> None:
    task = Task("t", "Do.", {"entry_point": "aux", "tests": ("assert aux(1)",)})
    text = "def aux(x):\n    return aux(x) + 1"
    attempt = CodeGeneration(2).attempt(task, [text, text], last=True)
    assert attempt.use.called == {"aux"}
    assert attempt.answers[0].use.called == frozenset()
