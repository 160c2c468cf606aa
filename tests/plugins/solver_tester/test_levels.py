"""Levels, rewards, feedback and forgery of executed solutions and written tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

import pytest

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.data.loading import load_tasks
from marl_ray.environments.base import collect_programs, group_reports
from marl_ray.plugins.solver_tester.attempt import SolutionAttempt, written_tests
from marl_ray.plugins.solver_tester.environment import SolverTester
from marl_ray.plugins.solver_tester.prompts import TESTS_PER_WRITER
from marl_ray.sandbox import Limits, Sandbox, SandboxSettings
from tests.sandbox.datasets import DATA

TASK = Task(
    "t",
    "Double x, but give 0 for negative numbers.",
    {
        "entry_point": "f",
        "tests": ("assert f(1) == 2", "assert f(4) == 8", "assert f(-1) == 0"),
        "reference": "def f(x):\n    return 2 * x if x > 0 else 0\n",
    },
)
RIGHT, WRONG, BROKEN = "def f(x):\n    return max(0, 2 * x)", "def f(x):\n    return 2 * x", "def f(x:\n    return"
CONSTANT = "def f(x):\n    return None"
EASY = "assert f(1) == 2\nassert f(2) == 4\nassert f(3) == 6"
SHARP = "assert f(1) == 2\nassert f(-5) == 0\nassert f(3) == 6"
FALSE = "assert f(1) == 3\nassert f(-5) == 7\nassert f(3) == 6"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(SandboxSettings(limits=Limits(test_cpu_s=1.0, max_timeouts=1))) as running:
        yield running


def played(sandbox: Sandbox, *answers: str, task: Task = TASK) -> tuple[SolverTester, SolutionAttempt, Outcome]:
    environment = SolverTester(len(answers))
    environment.check_task(task)
    attempt = environment.attempt(task, answers, last=False)
    (report,) = group_reports([attempt], sandbox.run_batch(collect_programs([attempt])))
    return environment, attempt, environment.outcome(attempt, report)


@pytest.mark.parametrize(
    ("tests", "solution", "levels", "writer", "solver"),
    [
        (EASY, RIGHT, (0.5, 1.5, 0.5, 1.0), 1.5, 3.0),
        (SHARP, RIGHT, (0.5, 1.5, 0.5, 1.0), 1.5, 3.0),
        (EASY, WRONG, (0.5, 1.0, 0.5, 0.0), 0.5, 1.5),
        (SHARP, WRONG, (0.5, 1.0, 0.5, 2 / 3), 0.5 + 2 / 3, 1.5 + 2 / 3),  # passes two of three tests
        (SHARP, CONSTANT, (0.5, 0.0, 0.5, 0.0), 0.5, 0.5),
        (FALSE, RIGHT, (0.5, 1.5, 0.5 / 3, 1.0), 0.5 / 3 + 1, 3.0),
        (FALSE, WRONG, (0.5, 1.0, 0.5 / 3, 0.0), 0.5 / 3, 1.5),
        ("assert f(-5) == 0", WRONG, (0.5, 1.0, 0.5 / 3, 2 / 3), 0.5 / 3 + 2 / 3, 1.5 + 2 / 3),
        ("", RIGHT, (0.5, 1.5, 0.0, 0.0), 0.0, 2.0),
        (SHARP, BROKEN, (0.0, 0.0, 0.5, 0.0), 0.5, 0.0),
        (SHARP, "", (0.0, 0.0, 0.5, 0.0), 0.5, 0.0),
        (SHARP, "def f(x):\n    while x < 0: pass\n    return 2 * x", (0.5, 1.0, 0.5, 2 / 3), 0.5 + 2 / 3, 1.5 + 2 / 3),
    ],
)
def test_levels(
    sandbox: Sandbox, tests: str, solution: str, levels: tuple[float, ...], writer: float, solver: float
) -> None:
    _, _, outcome = played(sandbox, tests, solution)
    assert dict(outcome.levels) == pytest.approx(
        dict(zip(("solution", "tests", "valid", "found"), levels, strict=True))
    )
    assert outcome.rewards == pytest.approx((writer, solver))
    assert outcome.reward == pytest.approx(sum(levels))
    assert outcome.metrics["mistakes_found"] == (tests != EASY and "-5) == 0" in tests and solution != RIGHT)


def test_copied_examples_are_no_tests(sandbox: Sandbox) -> None:
    shown = replace(TASK, prompt="Double x.\n>>> f( 1 )\n2\nf(3) -> 6\n")
    _, attempt, outcome = played(sandbox, EASY, RIGHT, task=shown)
    assert attempt.written == (("assert f(2) == 4",),)
    assert (outcome.levels["valid"], outcome.levels["found"]) == pytest.approx((0.5 / 3, 1.0))


def test_several_testers_and_a_solver_alone(sandbox: Sandbox) -> None:
    _, _, three = played(sandbox, SHARP, EASY, WRONG)
    assert three.rewards == pytest.approx((0.5 + 2 / 3, 0.5, 1.5 + 1 / 3))
    assert three.levels == pytest.approx({"solution": 0.5, "tests": 1.0, "valid": 0.5, "found": 1 / 3})
    assert three.metrics["found_truth"] == 0.5
    _, _, alone = played(sandbox, RIGHT)
    assert (alone.reward, alone.rewards, dict(alone.levels)) == (2.0, (), {"solution": 0.5, "tests": 1.5})


def test_validity_of_a_test_depends_on_the_reference_alone(sandbox: Sandbox) -> None:
    """Check that only values from processes without the solution decide about validity."""
    liar = "class Same(int):\n    def __eq__(self, other): return True\ndef f(x):\n    return Same(1)"
    equal = "def f(x):\n    class Same:\n        def __eq__(self, other): return True\n    return Same()"
    for solution in (liar, equal):
        _, _, outcome = played(sandbox, SHARP, solution)
        assert (outcome.levels["tests"], outcome.levels["valid"], outcome.levels["found"]) == (0.0, 0.5, 0.0)
        assert (outcome.metrics["mistakes_found"], outcome.metrics["found_truth"]) == (1.0, 1.0)
    hostile = "import os\nassert f(1) == os._exit(0)\nassert f(exit()) == 2\nassert f(1) == 2"
    _, attempt, outcome = played(sandbox, hostile, RIGHT)
    assert attempt.written == (("assert f(1) == 2",),)
    assert outcome.levels["valid"] == pytest.approx(0.5 / 3)


def test_feedback(sandbox: Sandbox) -> None:
    environment, attempt, outcome = played(sandbox, SHARP + "\nassert f(2) == 5", WRONG)
    found = "failed: assert f(-5) == 0 -> AssertionError: got -10, expected 0"
    solver = environment.feedback(attempt, outcome, "level_feedback", 1)
    assert solver[:4] == ["f: found", "syntax: OK", "tests: 1 of 1 passed", "written tests: 3 of 4 valid, 1 failed"]
    assert solver[4].startswith("failed: assert f(-5) == 0 -> AssertionError")
    assert solver[5:] == ["not valid: assert f(2) == 5"], found
    assert not any("f(-1)" in line for line in solver), "a test that is not in the slice"
    brief = environment.feedback(attempt, outcome, "level_passed", 0)
    assert brief == ["implementation: OK", "syntax: correct", "tests: passed all", solver[3]]
    assert environment.feedback(attempt, outcome, "passed", 0) == ["Not all levels passed"]
    good, attempt, outcome = played(sandbox, EASY, RIGHT)
    assert good.feedback(attempt, outcome, "passed", 0) == ["All levels passed"]
    broken, attempt, outcome = played(sandbox, EASY, BROKEN)
    assert broken.feedback(attempt, outcome, "level_feedback", 0)[-1] == "tests: not run"


def test_testers_read_the_solution_and_the_solver_only_the_problem() -> None:
    environment = SolverTester(3)
    assert environment.order(TASK) == [[2], [0, 1]]
    tests, other, solution = environment.first_prompts(TASK)
    assert tests == other
    assert solution.startswith(TASK.prompt)
    received = environment.prompt_after(TASK, 0, tests, {2: f"Sure!\n```python\n{WRONG}\n```"})
    assert received == f"Another agent's solution:\n{WRONG}\n\n{tests}"
    assert environment.prompt_after(TASK, 0, tests, {2: " "}).startswith("Another agent's solution:\n(empty)\n")
    assert environment.roles(TASK) == ["tests_1", "tests_2", "solution"]
    assert environment.revisions(TASK)[0] == environment.revisions(TASK)[1]


def test_a_task_without_a_reference_is_rejected() -> None:
    with pytest.raises(UserError, match=r"task toy/\d+ has no reference solution: set dataset.type to solver_tester"):
        SolverTester(2).check_task(load_tasks("bundled:toy", "eval[:1]")[0])


@pytest.mark.parametrize("name", ["mbpp", "humaneval"])
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
def test_references_and_tests_of_public_problems_earn_the_maximum(sandbox: Sandbox, name: str) -> None:
    path = DATA / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"no local copy of {name} in {DATA}")
    tasks, full = load_tasks(str(path), "test[:40]", "solver_tester"), 0
    for task in tasks:
        function = task.fields["entry_point"]
        tests = task.fields["tests"]
        text = "\n".join(tests) if isinstance(tests, tuple) else tests.replace("candidate(", f"{function}(")
        task = replace(task, prompt="Examples in the problem's text would be no tests.")
        body = ast.parse(task.fields["reference"]).body
        alone = sum(not isinstance(node, ast.Import | ast.ImportFrom) for node in body) == 1
        if not alone or len(written_tests(text, function)) < TESTS_PER_WRITER:
            continue
        _, _, outcome = played(sandbox, text, task.fields["reference"], task=task)
        assert outcome.reward == pytest.approx(3.5), (task.id, outcome.levels, outcome.evidence)
        full += 1
    assert full >= 20
