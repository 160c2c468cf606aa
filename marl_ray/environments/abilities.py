"""Abilities of some environments. An environment that has an ability names the ability's class as a base class.

The rest of the package asks with the functions of this module, each of which has the default for the ability's absence.

| ability | defines | without the ability |
|---|---|---|
| `AnswersInOrder` | `order`, `prompt_after` | all agents answer at the same time |
| `ExecutesPrograms` | `execute` | the sandbox executes the programs |
| `HoldsResources` | `close` | there is nothing to release |
| `DecidesSolved` | `solved` | the metric `all_passed` decides (`external.stop`) |
| `AsksExpert` | `question` | one question for all kinds of tasks (mode `expert_edits`) |
| `HasProbes` | `probes`, `probed` or `probed_outcome`, `pays_probes` | there are no probes |
| `ComparesSamples` | `sample_metrics` | several answers to a task are compared by pass@k alone |
| `WithoutPrograms` | nothing | attempts may have programs |
| `InterchangeableAgents` | nothing | answers of an agent stay in its place |
"""

from __future__ import annotations

import logging
from abc import ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from marl_ray.core.chat import Prompt, prepend
from marl_ray.core.concurrency import DeadlineExceeded, wait_within
from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError

if TYPE_CHECKING:
    from marl_ray.environments.base import BaseEnvironment, Environment, Executor

logger = logging.getLogger(__name__)
CLOSE_S = 60.0
"""Maximum seconds that a run waits for `HoldsResources.close`, while its actors still hold their devices."""
QUESTION = """\
A problem is answered in parts, and whoever writes a part does not see the others.

Problem:
{problem}

Parts:
{answers}

Suggest an edit for each of these parts: {names}. Reply with one JSON object and nothing else. Its keys are the parts' \
names, its values are strings: a short suggestion, or the corrected part."""


class AnswersInOrder(metaclass=ABCMeta):
    """Agents that answer one after another within a turn."""

    @abstractmethod
    def order(self, task: Task) -> list[list[int]]:
        """Return the order in which agents answer: agents (indices into `roles`) of one list answer simultaneously,
        agents of later lists afterwards."""

    def prompt_after(self: Any, task: Task, agent: int, prompt: Any, answers: Mapping[int, str]) -> Prompt:
        """Return the prompt of an agent that answers after other agents of the same turn. `prompt`, a `Prompt`, is the
        agent's prompt without an order; `answers` maps agents to their answers of this turn."""
        roles = self.roles(task)
        earlier = ""
        for other, answer in sorted(answers.items()):
            earlier += f"{roles[other]} has answered:\n{answer.strip()}\n\n"
        return prepend(earlier, prompt)


class ExecutesPrograms(metaclass=ABCMeta):
    """Programs that the sandbox cannot execute, such as questions to a judge model."""

    @abstractmethod
    async def execute(self, programs: Sequence[Any], sandbox: Executor) -> list[Any]:
        """Return one report per program of attempts and probes. Every wait in it needs a deadline."""


class HoldsResources(metaclass=ABCMeta):
    """Resources that end with the run, such as a server."""

    @abstractmethod
    async def close(self) -> None:
        """Release the resources of the environment at the end of a run."""


class DecidesSolved(metaclass=ABCMeta):
    """A rule of its own for solved tasks."""

    @abstractmethod
    def solved(self, attempt: Any, outcome: Outcome, tests: str) -> bool:
        """Return whether a joint action passes the `visible` tests, which feedback may mention, or `all` tests, so that
        its branch may end (`external.stop`)."""


class AsksExpert(metaclass=ABCMeta):
    """A question of its own to the expert of mode `expert_edits`."""

    @abstractmethod
    def question(self, task: Task, attempt: Any) -> str:
        """Return the question to an expert, who replies with a JSON object of edits by role."""


class HasProbes(metaclass=ABCMeta):
    """Further programs, whose reports show the value of each agent's part (`output.probe_helpers`)."""

    pays_probes: bool = False
    """Whether rewards depend on probes, so that every attempt is probed. A value, because a setting decides."""

    @abstractmethod
    def probes(self, attempt: Any, report: Any) -> list[Any]:
        """Return the programs of an attempt's probes."""

    def probed(self, attempt: Any, report: Any, reports: Sequence[Any]) -> dict[str, float]:
        """Return metrics from the reports on the probes."""
        return {}

    def probed_outcome(self, attempt: Any, report: Any, outcome: Outcome, reports: Sequence[Any]) -> Outcome:
        """Return the outcome after the probes: by default with the metrics of `probed`."""
        return replace(outcome, metrics={**outcome.metrics, **self.probed(attempt, report, reports)})


class ComparesSamples(metaclass=ABCMeta):
    """A choice between several independent answers to a task that needs no tests, such as a majority vote."""

    @abstractmethod
    def sample_metrics(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Return measures of a choice between k joint actions of one task. `marl-ray eval` reports the measure `best`
        of turn 1 as `turn_1/best@k`."""


class WithoutPrograms:
    """Rewards that are computed from the responses alone: no attempt has a program. Training runs then measure
    cooperation from recombined answers without an execution."""


class InterchangeableAgents:
    """Agents whose first prompts differ in nothing but their names, and whose reward does not depend on who gives an
    answer. Answers of one agent may then take the places of all agents (docs/explanation/cooperation.md)."""


def order(environment: BaseEnvironment, task: Task) -> list[list[int]]:
    """Return the order in which agents answer within a turn."""
    if isinstance(environment, AnswersInOrder):
        return environment.order(task)
    return [list(range(environment.num_agents))]


def prompt_after(
    environment: BaseEnvironment, task: Task, agent: int, prompt: Any, answers: Mapping[int, str]
) -> Prompt:
    """Return the prompt of an agent that answers after other agents of the same turn."""
    assert isinstance(environment, AnswersInOrder), "no agent answers after another one"
    return environment.prompt_after(task, agent, prompt, answers)


async def execute(environment: BaseEnvironment, programs: Sequence[Any], sandbox: Executor) -> list[Any]:
    """Return one report per program."""
    if isinstance(environment, ExecutesPrograms):
        return await environment.execute(programs, sandbox)
    return await sandbox.execute(programs)


async def close(environment: BaseEnvironment) -> None:
    """Release the resources of an environment. After CLOSE_S seconds the run ends without it."""
    if not isinstance(environment, HoldsResources):
        return
    try:
        await wait_within(CLOSE_S, f"{type(environment).__name__}.close", "", environment.close())
    except DeadlineExceeded as error:
        logger.warning(f"{error}: its resources may remain in use")


def solved(environment: Environment[Any], attempt: Any, outcome: Outcome, tests: str) -> bool:
    """Return whether a joint action passes the `visible` or `all` tests. Raises UserError."""
    if isinstance(environment, DecidesSolved):
        return environment.solved(attempt, outcome, tests)
    return all_passed(environment, outcome, tests)


def all_passed(environment: object, outcome: Outcome, tests: str) -> bool:
    """Return the metric `all_passed`. Raises UserError without it."""
    if "all_passed" not in outcome.metrics:
        raise UserError(
            f"{type(environment).__name__} reports no metric all_passed, which external.stop {tests} reads, as does "
            "handoff visible: set them to never and random, or give the environment the method solved "
            "(marl_ray.environments.abilities.DecidesSolved)"
        )
    return outcome.metrics["all_passed"] == 1.0


def sample_metrics(environment: BaseEnvironment, outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return measures of a choice between joint actions of one task, none without the ability."""
    if isinstance(environment, ComparesSamples):
        return environment.sample_metrics(outcomes)
    return {}


def question(environment: Environment[Any], task: Task, attempt: Any) -> str:
    """Return the question to an expert about a joint action."""
    if isinstance(environment, AsksExpert):
        return environment.question(task, attempt)
    return common_question(task, environment.roles(task), previous_answers(environment, attempt))


def common_question(task: Task, roles: Sequence[str], answers: Sequence[str]) -> str:
    """Return the question of environments without a question of their own."""
    labelled = labelled_answers(roles, answers)
    return QUESTION.format(problem=task.prompt.strip(), answers=labelled, names=", ".join(roles))


def labelled_answers(roles: Sequence[str], answers: Sequence[str]) -> str:
    """Return all answers in one text, each under its role."""
    return "\n\n".join(f"{role}:\n{answer}" for role, answer in zip(roles, answers, strict=True))


def pays_probes(environment: Environment[Any]) -> bool:
    """Return whether rewards depend on probes."""
    return isinstance(environment, HasProbes) and environment.pays_probes


def probes(environment: Environment[Any], attempt: Any, report: Any) -> list[Any]:
    """Return the programs of an attempt's probes."""
    if isinstance(environment, HasProbes):
        return list(environment.probes(attempt, report))
    return []


def probed_outcome(
    environment: Environment[Any], attempt: Any, report: Any, outcome: Outcome, reports: Sequence[Any]
) -> Outcome:
    """Return the outcome after the probes, from the reports on them."""
    if isinstance(environment, HasProbes):
        return environment.probed_outcome(attempt, report, outcome, reports)
    return outcome


class KeepsAnswers:
    """Earlier answers from a method, as in environments before `Attempt.answers` (`old_protocol`)."""

    def previous_answers(self, attempt: Any) -> Sequence[str]:
        """Return the text that each agent sees as its own previous answer."""
        return list(attempt.answers)


def previous_answers(environment: Environment[Any], attempt: Any) -> Sequence[str]:
    """Return the text that each agent sees as its own previous answer."""
    if isinstance(environment, KeepsAnswers):
        return environment.previous_answers(attempt)
    answers: Sequence[str] = attempt.answers
    return answers
