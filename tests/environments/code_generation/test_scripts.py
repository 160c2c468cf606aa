"""Levels, feedback and visible tests of programs that read standard input and print."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.environments.code_generation.attempt import CodeAttempt
from marl_ray.sandbox import ExecutionReport, Limits, Sandbox, SandboxSettings, StdioCase, stdio_tests

CASES = [StdioCase("2\n1 2\n", "3\n"), StdioCase("1\n5\n", "5\n"), StdioCase("3\n1 1 1\n", "3\n")]
TASK = Task(
    "s", "Read n and n numbers. Print their sum.", {"entry_point": "main", "tests": stdio_tests(CASES), "script": True}
)
AUX = "def aux(line):\n    return sum(map(int, line.split()))"
MAIN = "def main():\n    input()\n    total = aux(input())\n    print(f'{total + 0.0:.1f}')"
THIN = "def main():\n    input()\n    print(aux(input()))"
ALONE = "import sys\n\n\ndef main():\n    sys.stdin.readline()\n    print(sum(map(int, sys.stdin.read().split())))"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(SandboxSettings(limits=Limits(test_cpu_s=1.0, max_timeouts=1))) as running:
        yield running


def played(
    sandbox: Sandbox, *answers: str, task: Task = TASK
) -> tuple[CodeGeneration, CodeAttempt, ExecutionReport, Outcome]:
    environment = CodeGeneration(len(answers))
    attempt = environment.attempt(task, answers, last=False)
    report = sandbox.run(attempt.program)
    return environment, attempt, report, environment.outcome(attempt, report)


@pytest.mark.parametrize(
    ("aux", "main", "levels"),
    [
        (AUX, MAIN, {"main": 0.6, "syntax": 0.5, "tests": 1.0, "aux": 0.4, "aux_called": 0.5, "not_thin": 1.0}),
        (AUX, THIN, {"main": 0.6, "syntax": 0.5, "tests": 1.0, "aux": 0.4, "aux_called": 0.5}),
        (AUX, ALONE, {"main": 0.6, "syntax": 0.5, "tests": 1.0, "aux": 0.4}),
        ("", ALONE, {"main": 0.6, "syntax": 0.5, "tests": 1.0}),
        (AUX, "def main():\n    aux(input())\n    print(3)", {"main": 0.6, "syntax": 0.5, "tests": 2 / 3}),
        (AUX, "def main():\n    return 3", {"main": 0.6, "syntax": 0.5, "aux": 0.4}),
        (AUX, "print(aux(input()))", {"aux": 0.4}),
        (AUX, "def main(:\n    print(3)", {"aux": 0.4}),
    ],
)
def test_levels(sandbox: Sandbox, aux: str, main: str, levels: dict[str, float]) -> None:
    _, _, report, outcome = played(sandbox, aux, main)
    if "aux(input())\n    print(3)" in main:
        levels = levels | {"aux": 0.4, "aux_called": 0.5, "not_thin": 1.0, "misused": -0.5}
    assert {name: value for name, value in outcome.levels.items() if value} == pytest.approx(levels)
    assert report.trusted


def test_scripts_and_functions_have_the_same_maximum(sandbox: Sandbox) -> None:
    environment, _, _, outcome = played(sandbox, AUX, MAIN)
    assert outcome.reward == environment.max_reward == 4.0
    environment, _, _, outcome = played(sandbox, ALONE)
    assert outcome.reward == pytest.approx(environment.max_reward)


def test_a_failing_exit_status_fails_despite_correct_output(sandbox: Sandbox) -> None:
    for ending in ("raise ValueError(1)", "import sys; sys.exit(3)", "import os; os.abort()"):
        loud = f"def main():\n    input()\n    print(sum(map(int, input().split())), flush=True)\n    {ending}"
        _, _, _, outcome = played(sandbox, "", loud)
        assert outcome.levels["tests"] == 0.0, ending


def test_feedback_contains_only_the_first_tests(sandbox: Sandbox) -> None:
    environment, attempt, _, outcome = played(sandbox, AUX, "def main():\n    print(5)")
    assert outcome.levels["tests"] == pytest.approx(1 / 3)
    told = environment.feedback(attempt, outcome, "level_feedback", 1)
    assert told[:4] == ["aux: found", "main: found", "syntax: OK", "tests: 0 of 1 passed"]
    assert "WrongOutput: line 1: got '5', expected '3'" in told[4]
    assert told[5:] == ["aux use: aux not called"]
    assert environment.feedback(attempt, outcome, "level_passed", 0)[2] == "tests: passed none"


def test_a_helper_is_probed_before_main_is_called(sandbox: Sandbox) -> None:
    environment, attempt, report, _ = played(sandbox, AUX, MAIN)
    probes = environment.probes(attempt, report)
    assert all(probe.source.endswith("\n\nmain()\n") and probe.source.count("main()") == 2 for probe in probes)
    assert environment.probed(attempt, report, sandbox.run_batch(probes)) == {
        "helper_needed": 1.0,
        "helper_suffices": 0.0,
    }


def test_prompts_name_standard_input() -> None:
    for text in [*CodeGeneration(2).first_prompts(TASK), *CodeGeneration(3).revisions(TASK)[-1:]]:
        assert "`main` has no parameters: it reads the input from standard input and prints the answer." in text
    plain = replace(TASK, fields={"entry_point": "main", "tests": ("assert main() == 1",)})
    assert not any("standard input" in text for text in CodeGeneration(2).first_prompts(plain))
