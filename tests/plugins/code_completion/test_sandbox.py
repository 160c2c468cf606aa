"""Executed classes: canonical solutions, and the same with one missing or broken method."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.execution import report_of
from marl_ray.plugins.code_completion.attempt import shares_of
from marl_ray.plugins.code_completion.environment import CodeCompletion
from marl_ray.plugins.code_completion.feedback import diagnose
from marl_ray.plugins.code_completion.rows import CLASSEVAL, methods_of_solution
from marl_ray.sandbox import Sandbox, SandboxSettings
from marl_ray.sandbox.inside.isolation import file_access
from marl_ray.testing import check_dataset, check_environment
from tests.plugins.code_completion.helpers import POP, RIGHT, ROOT, TASK
from tests.sandbox.datasets import CLASSEVAL_FAILING, CLASSEVAL_OF_NOW, CLASSEVAL_WITH_FILES, load

NOT_CHECKED = {*CLASSEVAL_FAILING, *CLASSEVAL_OF_NOW}


@pytest.fixture(scope="module")
def classes() -> list[tuple[Task, dict[str, str]]]:
    """Tasks of ClassEval that are solvable on this machine, with the reference's methods."""
    pairs = [(CLASSEVAL.task(row, number), row) for number, row in enumerate(load("classeval"))]
    return [(task, methods_of_solution(row)) for task, row in pairs if task.id not in NOT_CHECKED]


def answers(task: Task, solution: dict[str, str], strategy: str, num_agents: int) -> list[str]:
    """Return each agent's answer according to the reference."""
    shares = shares_of(task, strategy, num_agents)
    return ["\n\n".join(solution[name] for name in own) or "pass" for own in shares]


def outcomes(
    sandbox: Sandbox, environment: CodeCompletion, played: Sequence[tuple[Task, Sequence[str]]]
) -> list[Outcome]:
    attempts = [environment.attempt(task, responses, last=True) for task, responses in played]
    reports = sandbox.run_batch([attempt.program for attempt in attempts])
    return [environment.outcome(attempt, report) for attempt, report in zip(attempts, reports, strict=True)]


@pytest.mark.parametrize(
    ("strategy", "num_agents", "every"), [("param_count", 2, 1), ("round_robin", 3, 4), ("balanced", 1, 4)]
)
def test_canonical_methods_earn_the_maximum(
    sandbox: Sandbox, classes: list[tuple[Task, dict[str, str]]], strategy: str, num_agents: int, every: int
) -> None:
    assert len(classes) == 60 - len(NOT_CHECKED)
    played = [(task, answers(task, solution, strategy, num_agents)) for task, solution in classes[::every]]
    found = outcomes(sandbox, CodeCompletion(num_agents, strategy), played)
    assert {task.id: o.levels for (task, _), o in zip(played, found, strict=True) if o.reward != 6.0} == {}


def test_allowed_packages_make_more_classes_solvable() -> None:
    pytest.importorskip("numpy")
    rows = {row["task_id"]: row for row in load("classeval")}
    solvable = [rows[f"ClassEval_{number}"] for number in (57, 59)]
    pairs = [(CLASSEVAL.task(row, number), methods_of_solution(row)) for number, row in enumerate(solvable)]
    played = [(task, answers(task, solution, "balanced", 2)) for task, solution in pairs]
    with Sandbox(SandboxSettings(packages=("numpy",))) as sandbox:
        found = outcomes(sandbox, CodeCompletion(2, "balanced"), played)
    assert [outcome.reward for outcome in found] == [6.0, 6.0]


@pytest.mark.skipif(
    file_access.landlock_abi() < file_access.WRITING_ABI, reason="scratch folders need Landlock as of Linux 6.2"
)
def test_a_scratch_folder_makes_more_classes_solvable() -> None:
    pairs = [(CLASSEVAL.task(row, number), methods_of_solution(row)) for number, row in enumerate(load("classeval"))]
    filing = [(task, solution) for task, solution in pairs if task.id in CLASSEVAL_WITH_FILES]
    played = [(task, answers(task, solution, "balanced", 2)) for task, solution in filing]
    with Sandbox(SandboxSettings(scratch_mb=8)) as sandbox:
        found = outcomes(sandbox, CodeCompletion(2, "balanced"), played)
    assert [outcome.reward for outcome in found] == [6.0] * 8


def test_a_missing_or_broken_method_costs_its_level_and_is_named(
    sandbox: Sandbox, classes: list[tuple[Task, dict[str, str]]]
) -> None:
    environment = CodeCompletion(2, "round_robin", sandbox_slice="all")
    played = []
    for number, (task, solution) in enumerate(classes):
        first, *_ = task.fields["methods"]
        spoiled = solution | {first: f"def {first}(self):\n    return (" * (number % 2)}
        played.append((task, answers(task, spoiled, "round_robin", 2)))
    for (task, responses), outcome in zip(played, outcomes(sandbox, environment, played), strict=True):
        first, *others = task.fields["methods"]
        assert outcome.levels["methods"] == pytest.approx(2 * len(others) / (1 + len(others))), task.id
        assert outcome.levels["tests"] < 4, task.id
        attempt = environment.attempt(task, responses, last=True)
        assert environment.feedback(attempt, outcome, "level_feedback", 0)[0].startswith(f"{first}: missing"), task.id
        assert f"missing from others: {first}" in environment.feedback(attempt, outcome, "level_feedback", 1), task.id
        failures = diagnose(attempt, report_of(outcome), "all").failures_for(0)
        about = [not text.mentions.isdisjoint(attempt.shares[0]) for _, text in failures]
        assert about[0], task.id
        assert about == sorted(about, reverse=True), task.id


def test_methods_of_other_agents_are_ignored(sandbox: Sandbox, classes: list[tuple[Task, dict[str, str]]]) -> None:
    played = [(task, answers(task, solution, "round_robin", 2)[::-1]) for task, solution in classes[:8]]
    environment = CodeCompletion(2, "round_robin")
    for (task, responses), outcome in zip(played, outcomes(sandbox, environment, played), strict=True):
        assert outcome.levels["methods"] == outcome.levels["overlap"] == 0, task.id
        told = environment.feedback(environment.attempt(task, responses, True), outcome, "level_feedback", 0)
        assert any(line.startswith("not yours: ") for line in told), task.id


@pytest.mark.parametrize(
    ("first", "second", "reward"),
    [
        (*RIGHT, 6.0),
        (POP, RIGHT[1], 1.5 + 3.0),  # TestRoot fails
        ("", "", 0.0),
        (RIGHT[0], f"{RIGHT[1]}\n\n{ROOT}", 6.0 - 0.25),
        (RIGHT[0], RIGHT[1].replace("self, item)", "self, item, item)"), 0.0),  # parses, and does not compile
        (RIGHT[0].replace("pop()", "pop(0)"), RIGHT[1], 6.0),
        (f"raise SystemExit\n{RIGHT[0]}", RIGHT[1], 6.0),  # other code is ignored
    ],
)
def test_rewards(sandbox: Sandbox, first: str, second: str, reward: float) -> None:
    (outcome,) = outcomes(sandbox, CodeCompletion(2), [(TASK, [first, second])])
    assert outcome.reward == pytest.approx(reward)


def test_conformance_of_the_environment(sandbox: Sandbox) -> None:
    for num_agents, joint in ((1, ["\n".join(RIGHT)]), (2, list(RIGHT)), (3, [*RIGHT, "pass"])):
        check_environment(CodeCompletion(num_agents), [TASK], [joint], execute=sandbox.run_batch)


def test_conformance_of_the_dataset_type() -> None:
    check_dataset(CLASSEVAL, load("classeval"))
