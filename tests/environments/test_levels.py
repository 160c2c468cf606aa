"""The reward of code generation, level by level."""

from __future__ import annotations

from typing import Any

import pytest

from marl_ray.core.messages import Assessment, Task
from marl_ray.environments import CodeGeneration, make_environment
from marl_ray.sandbox import ExecutionReport, SyntaxDiagnosis, TestResult

TASK = Task("toy/1", 'def f(x):\n    """Add 2."""\n', "f", ("assert f(1) == 3", "assert f(2) == 4"))
AUX = "def aux(x):\n    return x + 1"
MAIN = "def f(x):\n    return aux(x) + 1"


def report(passed: int, total: int = 2, syntax: SyntaxDiagnosis | None = None) -> ExecutionReport:
    statuses: list[Any] = ["pass"] * passed + ["fail"] * (total - passed)
    tests = tuple(TestResult(status, None, None, None, "assert f(1) == 3") for status in statuses)
    return ExecutionReport(tests, syntax, "", 0.0, 0.0, "none", True)


def assess(*responses: str, passed: int = 2, syntax: SyntaxDiagnosis | None = None) -> Assessment:
    environment = CodeGeneration(len(responses))
    found = environment.assess(TASK, responses, report(passed, syntax=syntax))
    assert found.reward == pytest.approx(sum(found.levels.values()))
    assert found.reward <= environment.max_reward
    return found


def test_passes_that_could_be_forged_count_by_a_setting() -> None:
    tests = tuple(TestResult("pass", None, None, None, "assert f(1) == 3", trusted) for trusted in (True, False))
    mixed = ExecutionReport(tests, None, "", 0.0, 0.0, "none", False)
    all_count = make_environment("mbpp", 2).assess(TASK, [AUX, MAIN], mixed)
    some_count = make_environment("mbpp", 2, count_untrusted=False).assess(TASK, [AUX, MAIN], mixed)
    assert (all_count.levels["tests"], some_count.levels["tests"]) == (1.0, 0.5)


def test_roles_and_maximum() -> None:
    assert CodeGeneration(1).roles == ["main"]
    assert CodeGeneration(2).roles == ["aux", "main"]
    assert CodeGeneration(3).roles == ["aux_1", "aux_2", "main"]
    assert (CodeGeneration(1).max_reward, CodeGeneration(2).max_reward) == (2.1, 4.0)
    with pytest.raises(ValueError, match="num_agents must be at least 1"):
        CodeGeneration(0)


def test_everything_right_is_worth_the_maximum() -> None:
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
        "aux_called": 1.0,
        "thin_wrapper": 0.0,
        "aux_misused": 0.0,
    }


@pytest.mark.parametrize(
    ("aux", "main", "passed", "reward"),
    [
        ("", MAIN, 2, 2.1),  # no helper: no levels of helpers
        ("def aux(x):\n    print(x)", MAIN, 2, 3.6),  # it exists, but returns nothing: no 0.4
        ("def aux(x):\n    x.sort()", "def f(x):\n    aux(x)\n    return x", 2, 3.1),
        ("def aux(x)\n    return x", MAIN, 2, 2.1),
        (AUX, "", 2, 0.4),  # no entry point: stop
        (AUX, "def f(x):\n    print(aux(x))", 2, 0.4),
        (AUX, "def g(x):\n    return aux(x)", 2, 0.4),
        ("", "", 0, 0.0),
        (AUX, MAIN, 0, 1.5),  # no test passed: calling the helper is worth nothing
        (AUX, MAIN, 1, 3.5),
        (AUX, "def f(x):\n    return x + 2", 2, 2.5),  # not called
        (AUX, "def f(x):\n    return aux(x)", 2, 3.0),  # thin wrapper
        (AUX, "def f(x):\n    aux(x)\n    return x + 2", 2, 3.5),  # thrown away
        (AUX, "def f(x):\n    y = aux(x)\n    return x + 2", 2, 3.5),
    ],
)
def test_levels_of_two_agents(aux: str, main: str, passed: int, reward: float) -> None:
    assert assess(aux, main, passed=passed).reward == pytest.approx(reward)


def test_levels_of_one_agent() -> None:
    assert assess("def f(x):\n    return x + 2").reward == pytest.approx(2.1)
    assert assess("def f(x):\n    return x + 2", passed=1).reward == pytest.approx(1.6)
    assert assess("def f(x):\n    pass").reward == 0.0
    assert set(assess(MAIN).metrics) == {"main_defined", "syntax_ok", "tests_passed_rate", "all_passed"}


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
    found = CodeGeneration(2).assess(TASK, [AUX, MAIN], report(0, 0))
    assert found.reward == pytest.approx(1.5)
    assert found.metrics["all_passed"] == 0.0


def test_the_number_of_responses_must_fit() -> None:
    with pytest.raises(ValueError, match="zip"):
        CodeGeneration(2).program(TASK, [MAIN])


def test_make_environment() -> None:
    assert make_environment("mbpp", 3).roles == ["aux_1", "aux_2", "main"]
    with pytest.raises(ValueError, match="'classeval' is not available yet"):
        make_environment("classeval", 2)
    with pytest.raises(ValueError, match="'humanevil' is not known"):
        make_environment("humanevil", 2)
