"""Executed patches of QuixBugs and HumanEvalPack."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from marl_ray.core.episode import Outcome, Task
from marl_ray.data.loading import load_tasks
from marl_ray.environments.base import collect_programs, group_reports
from marl_ray.plugins.bug_fix.environment import BugFix, BugFixPatchers
from marl_ray.plugins.bug_fix.patching import diff_lines
from marl_ray.plugins.bug_fix.rows import BUG_FIX
from marl_ray.sandbox import Limits, Sandbox, SandboxSettings
from tests.sandbox.datasets import DATA

needs_quixbugs = pytest.mark.skipif(
    not (DATA / "quixbugs.jsonl").exists(), reason=f"no local copy of QuixBugs in {DATA}"
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(
        SandboxSettings(limits=Limits(test_cpu_s=2.0, max_timeouts=1))
    ) as running:  # some bugs are endless loops
        yield running


def outcomes(sandbox: Sandbox, environment: BugFix, played: list[tuple[Task, list[str]]]) -> list[Outcome]:
    attempts = [environment.attempt(task, responses, last=True) for task, responses in played]
    programs = {program.key: program for program in collect_programs(attempts)}
    reports = dict(zip(programs, sandbox.run_batch(list(programs.values())), strict=True))
    found = group_reports(attempts, [reports[program.key] for program in collect_programs(attempts)])
    return [environment.outcome(attempt, report) for attempt, report in zip(attempts, found, strict=True)]


@needs_quixbugs
def test_only_the_fixes_of_quixbugs_earn_the_maximum(sandbox: Sandbox) -> None:
    tasks = load_tasks(str(DATA / "quixbugs.jsonl"), "test")
    assert len(tasks) == 12
    environment = BugFix(2)
    fixed, buggy = [], []
    for task in tasks:
        environment.check_task(task)
        program, reference = task.fields["buggy"], task.fields["reference"]
        line = diff_lines(program, reference).hunks[0].first
        fixed.append((task, [f"line: {line}\nwhy: it is wrong", reference]))
        buggy.append((task, [f"line: {line}\nwhy: it is wrong", program]))
    found = outcomes(sandbox, environment, fixed + buggy)
    patch_levels = {"parses": 0.5, "kept": 0.5, "fixed": 1.5, "small": 0.5}
    for task, right, wrong in zip(tasks, found, found[len(tasks) :], strict=False):
        assert right.levels == {**patch_levels, "diagnosis": 0.5}, (task.id, right.evidence)
        assert wrong.levels == {"parses": 0.5, "kept": 0.5, "fixed": 0.0, "small": 0.0, "diagnosis": 0.0}, task.id
        assert wrong.metrics["tests_passed_rate"] < 1.0


TASK = Task(
    "t",
    "Return the number of even entries of a list, and 0 for None.",
    {
        "entry_point": "evens",
        "tests": ("assert evens([1]) == 0", "assert evens([2, 3, 4]) == 2", "assert evens(None) == 0"),
        "buggy": "def even(n):\n    return n % 2\n\n\ndef evens(xs):\n    return sum(even(x) for x in xs)",
        "reference": "",
    },
)
EVEN = "def even(n):\n    return n % 2 == 0"
EVENS = "def evens(xs):\n    return sum(even(x) for x in xs or [])"


@pytest.mark.parametrize(
    ("first", "second", "fixed", "all_passed"),
    [
        (EVEN, EVENS, 1.5, 1.0),
        (EVEN, "def evens(xs):\n    return sum(even(x) for x in xs)", 1.0, 0.0),
        ("def even(n):\n    return n % 2", EVENS, 0.5, 0.0),
        ("def even(n)\n    return n % 2 == 0", EVENS, 0.0, 0.0),  # one syntax error breaks the program
        ("def even(n):\n    while True: pass", EVENS, 0.0, 0.0),
    ],
)
def test_patches_of_disjoint_functions_are_combined(
    sandbox: Sandbox, first: str, second: str, fixed: float, all_passed: float
) -> None:
    (found,) = outcomes(sandbox, BugFixPatchers(2), [(TASK, [first, second])])
    assert found.levels["fixed"] == pytest.approx(fixed)
    assert found.metrics["all_passed"] == all_passed


def test_rows_with_the_fields_of_humanevalpack(sandbox: Sandbox) -> None:
    """Check solutions that continue a declaration, and tests that call the function by their own parameter's name."""
    head = "from math import sqrt\n\n\ndef double(x):\n    return 2 * x\n\n\ndef root(x: float) -> float:\n"
    row = {
        "task_id": "Python/0",
        "prompt": f'{head}    """Return the root of twice x."""\n',
        "declaration": head,
        "buggy_solution": "    return sqrt(x)\n",
        "canonical_solution": "    return sqrt(double(x))\n",
        "entry_point": "root",
        "import": "",
        "test_setup": "",
        "test": "\n\ndef check(root):\n    assert root(0) == 0\n    assert root(double(4)) == 4\n\ncheck(root)",
    }
    task = BUG_FIX.task(row, 0)
    right = "from math import sqrt\n\ndef root(x: float) -> float:\n    return sqrt(double(x))"
    played = [(task, ["line: 9\nwhy: not twice", patch]) for patch in (right, task.fields["buggy"])]
    assert [found.reward for found in outcomes(sandbox, BugFix(2), played)] == [3.5, 1.0]
