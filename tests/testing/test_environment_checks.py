"""Conformance checks: the core passes them, and broken plug-ins fail them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from marl_ray.config import ExternalConfig
from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.credit import ESTIMATORS
from marl_ray.data import DATASETS
from marl_ray.data.loading import load_tasks
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.external import MODES
from marl_ray.external.modes import Message, Mode
from marl_ray.sandbox import Program, Sandbox
from marl_ray.testing import check_dataset, check_environment, check_estimator, check_mode
from tests.environments.talk import TASK, Said, Talk

AUX, MAIN = "def aux(x):\n    return x + 1", "def {}(x):\n    return aux(x) + 1"


# The package's own names


@pytest.mark.parametrize("agents", [1, 2, 3])
def test_code_generation(sandbox: Sandbox, agents: int) -> None:
    tasks = load_tasks("bundled:toy", "eval[:1]")
    answers = [*([AUX] * (agents - 1)), MAIN.format(tasks[0].fields["entry_point"])]
    check_environment(CodeGeneration(agents), tasks, [answers, answers[::-1]], execute=sandbox.run_batch)


@pytest.mark.parametrize("name", ["humaneval", "coophumaneval", "mbpp", "toy", "prompts"])
def test_dataset_types(name: str) -> None:
    row = {"task_id": "1", "prompt": "Double x.", "entry_point": "f", "test": "assert f(1) == 2"}
    check_dataset(DATASETS.get(name), [row, {**row, "task_id": "2"}])


@pytest.mark.parametrize("name", MODES.entries)
def test_modes(sandbox: Sandbox, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    config = ExternalConfig(  # no server listens there, so expert_edits continues without an edit
        mode=name, expert_model="m", expert_base_url="http://127.0.0.1:9/v1", expert_retries=0
    )
    tasks = load_tasks("bundled:toy", "eval[:1]")
    environment = CodeGeneration(2)
    answers = [AUX, MAIN.format(tasks[0].fields["entry_point"])]
    check_mode(MODES.get(name)(config, environment), environment, tasks, [answers], execute=sandbox.run_batch)


@pytest.mark.parametrize("name", ["grpo", "magrpo", "maremax", "mareinforce", "marloo"])
def test_estimators(name: str) -> None:
    check_estimator(ESTIMATORS.get(name))


def test_an_environment_without_programs() -> None:
    check_environment(Talk(2), [TASK], [["Hello.", "And you?"]])
    with pytest.raises(UserError, match="is not supported by the environment, only passed, plain, expert_edits"):
        MODES.get("level_feedback")(ExternalConfig(mode="level_feedback"), Talk(2))


# Broken plug-ins


def numbered() -> Callable[..., int]:
    """Return a function with a different result on each call."""
    counter = itertools.count()
    return lambda *_: next(counter)


def made(**methods: Any) -> Talk:
    """Return the environment Talk with other methods."""
    return type("Broken", (Talk,), methods)(2)


def outcome(**changes: Any) -> Callable[..., Outcome]:
    return lambda self, attempt, report: Outcome(**({"reward": 1.0} | changes))


class Ended(Talk):
    def outcome(self, attempt: Said, report: Any) -> Outcome:
        return Outcome(1.0 / len(attempt.texts[0]))


class Evidence:
    def __init__(self, data: Any, lines: list[Any]) -> None:
        self.kept, self.told = data, lines

    def data(self) -> Any:
        return self.kept

    def lines(self) -> list[Any]:
        return self.told


another = numbered()
NO_TEXT: Any = 3


class Programs(Talk):
    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Any:
        attempt = Said(responses)
        attempt.program = Program(f"x = {another()}", ("assert x",), "x")  # type: ignore[assignment]
        return attempt


class FreePrograms(Talk):
    runs_programs = False

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Any:
        attempt = Said(responses)
        attempt.program = Program("x = 1", ("assert x",), "x")  # type: ignore[assignment]
        return attempt


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (made(roles=lambda self, task: ["a"]), "roles must be a list with one string for each of 2 agents"),
        (made(roles=lambda self, task: ["a", "a"]), "two roles have the same name"),
        (made(first_prompts=lambda self, task: "ab"), "first_prompts must be a list"),
        (made(order=lambda self, task: [[0]]), "order must return lists that contain each agent from 0 to 1 once"),
        (
            made(order=lambda self, task: [[0], [1]], prompt_after=lambda self, *_: NO_TEXT),
            "prompt_after must return texts or lists of messages",
        ),
        (made(revisions=lambda self, task: ["a", " "]), "revisions must not contain an empty string"),
        (made(outcome=lambda self, attempt, report: 1.0), "outcome must return an Outcome"),
        (made(outcome=outcome(reward=math.nan)), "rewards must be finite numbers by name: 'reward' is nan"),
        (made(outcome=outcome(levels={"a": 0.5})), "levels must add up to the reward"),
        (made(outcome=outcome(metrics={"a": None})), "metrics must be finite numbers by name: 'a' is None"),
        (made(outcome=outcome(counts={"a": 0.5})), "counts must be non-negative integers by name"),
        (made(outcome=outcome(rewards=(1.0,))), "rewards must be empty or have one entry for each of 2 agents"),
        (made(outcome=outcome(evidence=Evidence({1}, []))), "evidence.data() must be plain data for JSON"),
        (made(outcome=outcome(evidence=Evidence({}, [1]))), "evidence.lines() must be strings"),
        (made(outcome=lambda self, *_: Outcome(float(another()))), "outcome is not a function of attempt and report"),
        (
            made(outcome=lambda self, a, _: Outcome(1.0, metrics={a.texts[0][:1]: 1.0})),
            "levels, metrics and counts must have the same names",
        ),
        (made(feedback=lambda self, *_: ["a\nb"]), "feedback of passed must have one fact per line"),
        (made(feedback=lambda self, *_: "ab"), "feedback of passed must be a list of lines"),
        (made(previous_answers=lambda self, attempt: ["a"]), "answers of an attempt must have one string per agent"),
        (
            made(previous_answers=lambda self, attempt: ["a", "\ud800"]),
            "answers of an attempt must be encodable",
        ),
        (made(question=lambda self, *_: "speaker 0?"), "question must name speaker 1"),
        (made(probes=lambda self, *_: [Program("", (), "f")]), "the attempt has probes: pass `execute`"),
        (made(probed=lambda self, *_: {"needed": "no"}), "probed must be finite numbers by name"),
        (Programs(2), "attempt returned two different programs"),
        (FreePrograms(2), "the environment is WithoutPrograms, and an attempt has a program"),
        (
            made(interchangeable_agents=True, outcome=lambda self, a, _: Outcome(float(len(a.texts[0])))),
            "agents are not interchangeable: 6.0 for ['Hello.', 'And you?'], and 8.0 if the agents exchange them",
        ),
    ],
)
def test_a_broken_environment_fails_the_check(broken: Talk, says: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_environment(broken, [TASK], [["Hello.", "And you?"]])
    assert str(caught.value).startswith(says)


def test_an_environment_that_raises_on_a_response_shows_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        check_environment(Ended(2), [TASK], [["Hello.", "And you?"]])


def test_programs_require_the_execute_argument() -> None:
    task = Task("t", "Do.", {"entry_point": "f", "tests": ("assert f(1)",)})
    with pytest.raises(AssertionError, match="pass `execute`"):
        check_environment(CodeGeneration(1), [task], [["def f(x): return 1"]])
    with pytest.raises(AssertionError, match="at least one task"):
        check_environment(CodeGeneration(1), [], [[""]])


class Rows:
    environment = "code_generation"

    def task(self, row: Mapping[str, Any], number: int) -> Task:
        if not row.get("text"):
            raise UserError(f"row {number} has no text")
        return Task(f"row {number}", row["text"], {"words": tuple(row["text"].split())})


def rows(**attributes: Any) -> Any:
    """Return the dataset type Rows with other attributes."""
    return type("Broken", (Rows,), attributes)()


def changed(**changes: Any) -> Any:
    return rows(task=lambda self, row, number: replace(Rows().task(row, number), **changes))


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (rows(environment=CodeGeneration), "environment must be a registered name or module:Attr"),
        (rows(task=lambda self, row, number: row), "row 0: task must return a Task"),
        (changed(prompt=" "), "row 0: the task's prompt must be a non-empty string"),
        (changed(id=3), "row 0: the task's id must be a non-empty string"),
        (changed(id="one"), "two tasks have the same id"),
        (changed(fields=None), "row 0: fields must be a mapping"),
        (changed(fields={1: 2}), "row 0: the names of fields must be strings"),
        (changed(fields={"words": []}), "row 0: field words must be hashable"),
        (rows(task=lambda self, *_: Task(f"{another()}", "a", {})), "row 0: task returned two different tasks"),
        (
            rows(task=lambda self, row, number: Task(f"{number}", row["text"], {})),
            "a row without values must raise a UserError, not KeyError('text')",
        ),
        (rows(task=lambda self, row, number: Task(f"{number}", "a", {})), "the row {} must raise a UserError"),
    ],
)
def test_a_broken_dataset_type_fails_the_check(broken: Any, says: str) -> None:
    check_dataset(Rows(), [{"text": "a b"}, {"text": "c"}])
    with pytest.raises(AssertionError) as caught:
        check_dataset(broken, [{"text": "a b"}, {"text": "c"}])
    assert str(caught.value).startswith(says)


class Echo(Mode):
    async def messages(self, task: Task, attempt: Any, outcome: Outcome) -> tuple[list[Message], dict[str, float]]:
        return self.told(attempt)

    def told(self, attempt: Any) -> tuple[list[Message], dict[str, float]]:
        return [Message(("fine",), "more")] * 2, {}


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (lambda _: ([Message()], {}), "messages must have one entry for each of 2 agents, not 1"),
        (lambda _: ([Message(("a\nb",))] * 2, {}), "messages must have one fact per line"),
        (lambda _: ([Message(edit=NO_TEXT)] * 2, {}), "an edit must be a string, not 3"),
        (lambda _: ([Message()] * 2, {"a": math.inf}), "metrics must be finite numbers"),
        (lambda attempt: ([Message()] * 2, {attempt.texts[0][:1]: 1.0}), "metrics must have the same names"),
    ],
)
def test_a_broken_mode_fails_the_check(told: Any, says: str) -> None:
    mode = Echo(ExternalConfig(), Talk(2))
    check_mode(mode, Talk(2), [TASK], [["Hello.", "And you?"]])
    mode.told = told  # type: ignore[method-assign]
    with pytest.raises(AssertionError) as caught:
        check_mode(mode, Talk(2), [TASK], [["Hello.", "And you?"]])
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda r: r.add_(1), "the estimator modifies its input"),
        (lambda r: r.mean(dim=-1), "advantages must be a torch.float64 tensor of the returns' shape (4, 4)"),
        (lambda r: r.float(), "advantages must be a torch.float64 tensor"),
        (lambda r: r / (r - r.mean(dim=-1, keepdim=True)), "advantages must be finite"),
        (lambda r: r + torch.rand_like(r), "the estimator returns different advantages"),
        (lambda r: r - r.mean(), "a group's advantages must not depend on other groups"),
        (lambda r: r - r[..., :1], "advantages must not depend on the siblings' order"),
        (lambda r: -r, "a sibling with a higher return must not have a lower advantage"),
    ],
)
def test_a_broken_estimator_fails_the_check(broken: Any, says: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_estimator(broken)
    assert str(caught.value).startswith(says)
