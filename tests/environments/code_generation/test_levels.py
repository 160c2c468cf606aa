"""Reward levels of code generation."""

from __future__ import annotations

from typing import Any

import pytest

from marl_ray.config import from_tree
from marl_ray.core.episode import Outcome, Task
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.sandbox import ExecutionReport, SyntaxDiagnosis, TestResult

TESTS = ("assert f(1) == 3", "assert f(2) == 4")
TASK = Task("toy/1", 'def f(x):\n    """Add 2."""\n', {"entry_point": "f", "tests": TESTS})
AUX = "def aux(x):\n    return x + 1"
MAIN = "def f(x):\n    return aux(x) + 1"


def report(passed: int, total: int = 2, syntax: SyntaxDiagnosis | None = None) -> ExecutionReport:
    statuses: list[Any] = ["pass"] * passed + ["fail"] * (total - passed)
    tests = tuple(TestResult(status, None, None, None, "assert f(1) == 3") for status in statuses)
    return ExecutionReport(tests, syntax, "", 0.0, 0.0, "none", True)


def outcome(environment: CodeGeneration, responses: list[str], found: ExecutionReport) -> Outcome:
    return environment.outcome(environment.attempt(TASK, responses, last=True), found)


def assess(*responses: str, passed: int = 2, syntax: SyntaxDiagnosis | None = None) -> Outcome:
    environment = CodeGeneration(len(responses))
    found = outcome(environment, list(responses), report(passed, syntax=syntax))
    assert found.reward == pytest.approx(sum(found.levels.values()))
    assert found.reward <= environment.max_reward
    return found


def test_count_untrusted_decides_about_forgeable_passes() -> None:
    tests = tuple(TestResult("pass", None, None, None, "assert f(1) == 3", trusted) for trusted in (True, False))
    mixed = ExecutionReport(tests, None, "", 0.0, 0.0, "none", False)
    all_count = outcome(CodeGeneration(2), [AUX, MAIN], mixed)
    some_count = outcome(CodeGeneration(2, count_untrusted=False), [AUX, MAIN], mixed)
    assert (all_count.levels["tests"], some_count.levels["tests"]) == (1.0, 0.5)


def test_roles_and_maximum_reward() -> None:
    assert CodeGeneration(1).roles(TASK) == ["f"]
    assert CodeGeneration(2).roles(TASK) == ["aux", "f"]
    assert CodeGeneration(3).roles(TASK) == ["aux_1", "aux_2", "f"]
    assert (CodeGeneration(1).max_reward, CodeGeneration(2).max_reward) == (2.1, 4.0)
    with pytest.raises(ValueError, match="num_agents must be at least 1"):
        CodeGeneration(0)


def test_a_correct_solution_earns_the_maximum() -> None:
    found = assess(AUX, MAIN)
    assert found.reward == 4.0
    assert found.levels == {
        "aux": 0.4,
        "main": 0.6,
        "syntax": 0.5,
        "tests": 1.0,
        "aux_called": 0.5,
        "not_thin": 1.0,
        "misused": 0.0,
    }
    assert found.metrics == {
        "aux_defined": 1.0,
        "main_defined": 1.0,
        "syntax_ok": 1.0,
        "tests_passed_rate": 1.0,
        "all_passed": 1.0,
        "visible_passed": 1.0,
        "aux_called": 1.0,
        "thin_wrapper": 0.0,
        "aux_misused": 0.0,
    }


@pytest.mark.parametrize(
    ("aux", "main", "passed", "reward"),
    [
        ("", MAIN, 2, 2.1),  # no helper: no levels of helpers
        ("def aux(x):\n    print(x)", MAIN, 2, 3.6),  # exists without a return value: no 0.4
        ("def aux(x):\n    x.sort()", "def f(x):\n    aux(x)\n    return x", 2, 3.1),
        ("def aux(x)\n    return x", MAIN, 2, 2.1),
        (AUX, "", 2, 0.4),  # no entry point: no further levels
        (AUX, "def f(x):\n    print(aux(x))", 2, 0.4),
        (AUX, "def g(x):\n    return aux(x)", 2, 0.4),
        ("", "", 0, 0.0),
        (AUX, MAIN, 0, 1.5),  # no test passed: calling the helper is worth nothing
        (AUX, MAIN, 1, 3.5),
        (AUX, "def f(x):\n    return x + 2", 2, 2.5),  # not called
        (AUX, "def f(x):\n    return aux(x)", 2, 3.0),  # thin wrapper
        (AUX, "def f(x):\n    aux(x)\n    return x + 2", 2, 3.5),  # discarded result
        (AUX, "def f(x):\n    y = aux(x)\n    return x + 2", 2, 3.5),
    ],
)
def test_levels_of_two_agents(aux: str, main: str, passed: int, reward: float) -> None:
    assert assess(aux, main, passed=passed).reward == pytest.approx(reward)


def test_levels_of_one_agent() -> None:
    assert assess("def f(x):\n    return x + 2").reward == pytest.approx(2.1)
    assert assess("def f(x):\n    return x + 2", passed=1).reward == pytest.approx(1.6)
    assert assess("def f(x):\n    pass").reward == 0.0
    assert set(assess(MAIN).metrics) == {
        "main_defined",
        "syntax_ok",
        "tests_passed_rate",
        "all_passed",
        "visible_passed",
    }


def test_a_syntax_error_stops_after_the_first_level() -> None:
    found = assess(AUX, "def f(x, x):\n    return x", passed=0, syntax=SyntaxDiagnosis("duplicate", 4, 10))
    assert found.reward == 1.0
    assert found.metrics["syntax_ok"] == 0.0
    # Not even a report that claims passed tests earns more.
    assert assess(AUX, MAIN, passed=2, syntax=SyntaxDiagnosis("no", 1, 1)).reward == 1.0


def test_helpers_share_their_levels() -> None:
    one, two = "def aux_1(x):\n    return x", "def aux_2(x):\n    return x"
    both = "def f(x):\n    return aux_1(x) + aux_2(2)"
    assert assess(one, two, both).reward == pytest.approx(4.0)
    assert assess(one, "", both).reward == pytest.approx(4.0 - 0.2 - 0.75)
    assert assess(one, two, "def f(x):\n    return aux_1(x) + 2").reward == pytest.approx(4.0 - 0.75)
    thrown = "def f(x):\n    aux_1(x)\n    return aux_2(x) + 1"
    assert assess(one, two, thrown).reward == pytest.approx(4.0 - 0.25)
    thin = "def f(x):\n    return aux_2(x)"
    assert assess(one, two, thin).reward == pytest.approx(2.5 + 0.25)


def test_an_empty_report_earns_no_tests() -> None:
    found = outcome(CodeGeneration(2), [AUX, MAIN], report(0, 0))
    assert found.reward == pytest.approx(1.5)
    assert found.metrics["all_passed"] == 0.0


def test_the_number_of_responses_must_equal_the_number_of_agents() -> None:
    with pytest.raises(ValueError, match="zip"):
        CodeGeneration(2).attempt(TASK, [MAIN], last=True)


def test_counts_and_evidence_of_an_outcome() -> None:
    slow = TestResult("timeout", None, "took long", None, "assert f(1) == 3", trusted=False)
    found = outcome(CodeGeneration(2), [AUX, MAIN], ExecutionReport((slow,), None, "", 0.0, 0.0, "none", False))
    assert found.counts == {"sandbox/untrusted": 1, "sandbox/timeouts": 1}
    assert found.evidence is not None
    assert found.evidence.data()["report"]["tests"][0]["status"] == "timeout"
    assert found.evidence.lines() == ["[sandbox] 0 of 1 tests passed", "    timeout: assert f(1) == 3    took long"]
    fine = outcome(CodeGeneration(2), [AUX, MAIN], report(2))
    assert fine.counts == {"sandbox/untrusted": 0, "sandbox/timeouts": 0}
    broken = outcome(CodeGeneration(2), [AUX, MAIN], report(0, syntax=SyntaxDiagnosis("no", 1, 1)))
    assert broken.evidence is not None
    assert broken.evidence.lines()[0] == "[sandbox] syntax error: no"


def test_an_infrastructure_error_gives_no_verdict() -> None:
    lost = ExecutionReport((), None, "", 0.0, 0.0, "none", True, infra_error="no worker")
    found = outcome(CodeGeneration(2), [AUX, MAIN], lost)
    assert (found.failure, found.reward, found.metrics) == ("no worker", 0.0, {})
    assert assess(AUX, MAIN).failure == ""


def test_from_config() -> None:
    tree = {"magrpo": {"num_agents": 3}, "sandbox": {"count_untrusted": False}, "external": {"sandbox_slice": -2}}
    config = from_tree({"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}} | tree, "magrpo")
    environment = ENVIRONMENTS.get("code_generation").from_config(config)
    assert environment.roles(TASK) == ["aux_1", "aux_2", "f"]
    assert environment.attempt(TASK, ["", "", MAIN], last=False).program.visible == -2
    assert environment.attempt(TASK, ["", "", MAIN], last=True).program.visible is None
    forged = TestResult("pass", None, None, None, "assert f(1) == 3", trusted=False)
    found = outcome(environment, ["", "", MAIN], ExecutionReport((forged,), None, "", 0.0, 0.0, "none", False))
    assert found.levels["tests"] == 0.0
