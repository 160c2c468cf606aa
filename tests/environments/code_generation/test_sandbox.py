"""Rewards and feedback of executed joint programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marl_ray.core.episode import Outcome, Task
from marl_ray.data.loading import load_tasks
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.environments.code_generation.attempt import CodeAttempt
from marl_ray.environments.code_generation.feedback import diagnose
from marl_ray.sandbox import Sandbox

HUMANEVAL = Path(__file__).parents[4] / "shared" / "data" / "humaneval.jsonl"
AUX = "def aux(x):\n    return x + 1"
FIELDS = {"entry_point": "f", "tests": ("assert f(1) == 3", "assert f(2) == 4")}
TASK = Task("t", "def f(x):\n    '''Add 2.'''\n", FIELDS)


def outcomes(sandbox: Sandbox, environment: CodeGeneration, attempts: list[CodeAttempt]) -> list[Outcome]:
    reports = sandbox.run_batch([attempt.program for attempt in attempts])
    return [environment.outcome(attempt, report) for attempt, report in zip(attempts, reports, strict=True)]


@pytest.mark.parametrize(
    ("aux", "main", "reward"),
    [
        (AUX, "def f(x):\n    return aux(x) + 1", 4.0),
        (AUX, "def f(x):\n    return aux(x)", 1.5),
        (AUX, "def f(x):\n    return aux(x) + 1 if x == 1 else 0", 3.5),
        ("def aux(x):\n    return (x", "def f(x):\n    return x + 2", 0.6),  # breaks the whole program
        ("I am a helper.", "def f(x):\n    return x + 2", 2.1),  # contributes nothing, like an empty answer
        ("def helper(x):\n    return (x", "def f(x):\n    return x + 2", 2.1),
        (f"Sure:\n```python\n{AUX}\n```\nIt's short.", "```\ndef f(x):\n    return aux(x) + 1\n\nprint(f(", 4.0),
        ("", "def f(x):\n    return x + 2", 2.1),
        (AUX, "def f(x, x):\n    return x", 1.0),
        ("def aux(x):\n    return math.floor(x) + 1", "def f(x):\n    return aux(x) + int(math.cos(0))", 4.0),
        ("def aux(xs):\n    xs.append(2)", "def f(x):\n    xs = [x]\n    aux(xs)\n    return sum(xs)", 3.1),
        (AUX, "def f(x):\n    return aux(x, x)", 1.5),
        (AUX, "import no_such_module as n\ndef f(x):\n    return aux(x) + n.one", 1.5),
    ],
)
def test_rewards(sandbox: Sandbox, aux: str, main: str, reward: float) -> None:
    environment = CodeGeneration(2)
    attempt = environment.attempt(TASK, [aux, main], last=True)
    assert environment.outcome(attempt, sandbox.run(attempt.program)).reward == pytest.approx(reward)


@pytest.mark.parametrize(
    ("aux", "main", "needed", "suffices"),
    [
        (AUX, "def f(x):\n    return aux(x) + 1", 1.0, 0.0),
        (AUX, "def f(x):\n    return aux(aux(x))", 1.0, 0.0),
        (AUX, "def f(x):\n    print(aux(x))\n    return x + 2", 0.0, 0.0),
        (AUX, "def f(x):\n    y = aux(x)\n    return (y or 0) * 0 + x + 2", 0.0, 0.0),
        ("def aux(x):\n    return x + 2", "def f(x):\n    return aux(x) + 1 - 1", 1.0, 1.0),
        ("def aux(x):\n    return 3", "def f(x):\n    return aux(x)", 0.0, 1.0),  # a constant passes one of two tests
        (AUX, "def f(x):\n    return aux(x)", 0.0, 0.0),  # no test passes
        (AUX, "def f(x):\n    return x + 2", 0.0, 0.0),  # not called
        ("", "def f(x):\n    return aux(x) or x + 2", 0.0, 0.0),
        ("def aux(x):\n    x.append(2)", "def f(x):\n    y = [x]\n    aux(y)\n    return sum(y)", 1.0, 0.0),
    ],
)
def test_probes_measure_the_value_of_a_helper(
    sandbox: Sandbox, aux: str, main: str, needed: float, suffices: float
) -> None:
    environment = CodeGeneration(2)
    attempt = environment.attempt(TASK, [aux, main], last=False)
    report = sandbox.run(attempt.program)
    probes = environment.probes(attempt, report)
    found = environment.probed(attempt, report, sandbox.run_batch(probes))
    assert found == {"helper_needed": needed, "helper_suffices": suffices}


def test_probes_measure_the_value_of_several_helpers(sandbox: Sandbox) -> None:
    environment = CodeGeneration(3)
    joint = [
        AUX.replace("aux", "aux_1"),
        AUX.replace("aux", "aux_2"),
        "def f(x):\n    aux_2(x)\n    return aux_1(x) + 1",
    ]
    attempt = environment.attempt(TASK, joint, last=True)
    report = sandbox.run(attempt.program)
    probes = environment.probes(attempt, report)
    assert len(probes) == 16
    found = environment.probed(attempt, report, sandbox.run_batch(probes))
    assert found == {"helper_needed": 0.5, "helper_suffices": 0.0}
    alone = CodeGeneration(1).attempt(TASK, ["def f(x):\n    return x + 2"], last=True)
    assert CodeGeneration(1).probes(alone, report) == []
    assert CodeGeneration(1).probed(alone, report, []) == {}


@pytest.mark.parametrize(
    ("aux", "main", "function", "line"),
    [
        ("def aux(x):\n    return (x", "def f(x):\n    return 1", "aux", 2),
        (AUX, "import math\n\ndef f(x):\n    y = = 1\n", "f", 2),
        (AUX, "def f(x):\n    return 1\n    y = '", None, None),
        ("Text.\ndef aux(x)\n    return x\nText.", "def f(x):\n    return 1", "aux", 1),
        ('"""', "def f(x):\n    return 1", None, None),
        (AUX, "def f(x, x):\n    return 1", "f", 1),
    ],
)
def test_syntax_errors_are_located_in_their_function(
    sandbox: Sandbox, aux: str, main: str, function: str | None, line: int | None
) -> None:
    task = Task(TASK.id, "import os\nimport re\n\n" + TASK.prompt, FIELDS)
    attempt = CodeGeneration(2).attempt(task, [aux, main], last=True)
    syntax = diagnose(attempt, sandbox.run(attempt.program), "all").syntax
    found = (None, None) if syntax is None else (syntax.function, syntax.line)
    assert found == (function, line)


@pytest.mark.skipif(not HUMANEVAL.exists(), reason=f"{HUMANEVAL} is not there")
def test_solutions_of_humaneval_earn_the_maximum_of_one_agent(sandbox: Sandbox) -> None:
    solutions = {
        row["task_id"]: row["prompt"] + row["canonical_solution"]
        for row in map(json.loads, HUMANEVAL.read_text().splitlines())
    }
    tasks = load_tasks(str(HUMANEVAL), "test")
    environment = CodeGeneration(1)
    attempts = [environment.attempt(task, [solutions[task.id]], last=True) for task in tasks]
    for task, found in zip(tasks, outcomes(sandbox, environment, attempts), strict=True):
        assert found.reward == pytest.approx(environment.max_reward), (task.id, found.evidence)


def test_solutions_of_the_bundled_tasks_earn_the_maximum(sandbox: Sandbox) -> None:
    from marl_ray.toy import TASKS_PATH

    rows = {row["task_id"]: row for row in map(json.loads, TASKS_PATH.read_text().splitlines())}
    environment = CodeGeneration(2)
    for split in ("train", "eval"):
        tasks = load_tasks("bundled:toy", split)
        joint = [[rows[task.id]["aux_solution"], rows[task.id]["main_solution"]] for task in tasks]
        attempts = [environment.attempt(task, both, last=True) for task, both in zip(tasks, joint, strict=True)]
        for task, found in zip(tasks, outcomes(sandbox, environment, attempts), strict=True):
            assert found.reward == 4.0, (task.id, found.evidence)
