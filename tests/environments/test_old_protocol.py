"""Environment classes of the earlier protocol, in which every environment had all optional methods."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from marl_ray.core.episode import Outcome, Task
from marl_ray.environments import ENVIRONMENTS, abilities
from marl_ray.environments.base import Environment, Executor
from marl_ray.environments.old_protocol import FLAGS, METHODS
from marl_ray.environments.wrapped_environment import WrappedEnvironment
from marl_ray.external.modes import Message, Mode
from marl_ray.testing import check_environment
from tests.environments.talk import Talk
from tests.rollout.helpers import NoExecutor

TASK = Task("t", "Talk.", {})


@dataclass(frozen=True)
class Spoken:
    """An attempt of that time: it has no `answers`."""

    texts: tuple[str, ...]
    program: Any = None


class Old(Environment[Spoken]):
    """A class with all optional methods, most of which ask `super()`."""

    modes = ("passed",)
    runs_programs = False
    interchangeable_agents = True

    def roles(self, task: Task) -> list[str]:
        return [f"speaker {agent}" for agent in range(self.num_agents)]

    def first_prompts(self, task: Task) -> list[str]:
        return [task.prompt] * self.num_agents

    def order(self, task: Task) -> list[list[int]]:
        return [[agent] for (agent,) in zip(*super().order(task), strict=True)]

    def prompt_after(self, task: Task, agent: int, prompt: Any, answers: Mapping[int, str]) -> Any:
        return super().prompt_after(task, agent, prompt, answers) + "Go on."

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Spoken:
        return Spoken(tuple(responses))

    async def execute(self, programs: Sequence[Any], sandbox: Executor) -> list[Any]:
        return await super().execute(programs, sandbox)

    async def close(self) -> None:
        await super().close()
        self.num_agents = 0

    def outcome(self, attempt: Spoken, report: Any) -> Outcome:
        return Outcome(float(sum(map(len, attempt.texts))), metrics={"all_passed": 1.0})

    def feedback(self, attempt: Spoken, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return [f"{outcome.reward:g} characters"]

    def previous_answers(self, attempt: Spoken) -> list[str]:
        return [f"{text}!" for text in attempt.texts]

    def revisions(self, task: Task) -> list[str]:
        return ["Again."] * self.num_agents

    def solved(self, attempt: Spoken, outcome: Outcome, tests: str) -> bool:
        return tests == "all" and super().solved(attempt, outcome, tests)

    def question(self, task: Task, attempt: Spoken) -> str:
        return super().question(task, attempt) + " Thanks."

    def probed(self, attempt: Spoken, report: Any, reports: Sequence[Any]) -> dict[str, float]:
        return {"probed": 1.0}

    def probed_outcome(self, attempt: Spoken, report: Any, outcome: Outcome, reports: Sequence[Any]) -> Outcome:
        return replace(super().probed_outcome(attempt, report, outcome, reports), reward=7.0)


class Around(WrappedEnvironment[Any]):
    """A wrapper of that time, which asks `base` for every optional method."""

    def roles(self, task: Task) -> list[str]:
        return self.base.roles(task)

    def first_prompts(self, task: Task) -> Sequence[Any]:
        return self.base.first_prompts(task)

    def order(self, task: Task) -> list[list[int]]:
        return self.base.order(task)

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Any:
        return self.base.attempt(task, responses, last)

    def outcome(self, attempt: Any, report: Any) -> Outcome:
        return self.base.outcome(attempt, report)

    def feedback(self, attempt: Any, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return self.base.feedback(attempt, outcome, mode, agent)

    def previous_answers(self, attempt: Any) -> list[str]:
        return self.base.previous_answers(attempt)

    def revisions(self, task: Task) -> list[str]:
        return self.base.revisions(task)

    def question(self, task: Task, attempt: Any) -> str:
        return self.base.question(task, attempt)

    def probes(self, attempt: Any, report: Any) -> list[Any]:
        return self.base.probes(attempt, report)


class Asks(Mode):
    """A mode of that time."""

    async def messages(self, task: Task, attempt: Any, outcome: Outcome) -> tuple[list[Message], dict[str, float]]:
        lines = self.environment.previous_answers(attempt)
        return [Message((line,)) for line in lines], {}


def test_an_old_class_has_the_abilities_that_it_defines() -> None:
    old = Old(2)
    attempt = old.attempt(TASK, ["Hello.", "You?"], last=True)
    outcome = old.outcome(attempt, None)
    assert abilities.order(old, TASK) == [[0], [1]]
    later = abilities.prompt_after(old, TASK, 1, "Talk.", {0: "Hello."})
    assert later == "speaker 0 has answered:\nHello.\n\nTalk.Go on."
    assert abilities.previous_answers(old, attempt) == ["Hello.!", "You?!"]
    assert abilities.solved(old, attempt, outcome, "all")
    assert not abilities.solved(old, attempt, outcome, "visible")
    assert abilities.question(old, TASK, attempt).startswith("A problem is answered in parts")
    assert "speaker 1:\nYou?!\n" in abilities.question(old, TASK, attempt)
    assert abilities.question(old, TASK, attempt).endswith("Thanks.")
    assert abilities.probes(old, attempt, None) == []
    probed = abilities.probed_outcome(old, attempt, None, outcome, [])
    assert (probed.reward, probed.metrics) == (7.0, {"all_passed": 1.0, "probed": 1.0})
    assert isinstance(old, abilities.WithoutPrograms)
    assert isinstance(old, abilities.InterchangeableAgents)
    assert asyncio.run(abilities.execute(old, [], NoExecutor())) == []
    asyncio.run(abilities.close(old))
    assert old.num_agents == 0


def test_an_old_wrapper_and_mode_ask_an_environment_of_today() -> None:
    around = Around(Talk(2), 2)
    check_environment(around, [TASK], [["Hello.", "And you?"]])
    assert abilities.order(around, TASK) == [[0, 1]]
    attempt = around.attempt(TASK, ["Hello.", "You?"], last=False)
    messages, _ = asyncio.run(Asks(None, Talk(2)).messages(TASK, attempt, Outcome(0.0)))  # type: ignore[arg-type]
    assert [message.lines for message in messages] == [("Hello.",), ("You?",)]
    with pytest.raises(AttributeError, match="Around has no attribute ordre"):
        around.ordre(TASK)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ENVIRONMENTS.entries)
def test_a_class_of_today_is_not_adapted_and_an_old_subclass_of_it_is(name: str) -> None:
    kind = ENVIRONMENTS.get(name)
    assert "OldEnvironment" not in {base.__name__ for base in kind.__mro__}
    methods = {method: lambda self, *_: None for method in METHODS}
    flags = {flag: value for flag, (value, _) in FLAGS.items()}
    old = type("Adapted", (kind,), {**methods, **flags})
    assert issubclass(old, abilities.HasProbes)
    assert issubclass(old, abilities.InterchangeableAgents)
