"""The environment `reward_model`: the tasks of another environment, rewarded by a learned model of joint preferences.

The environment of the task is still executed, so that prompts, feedback, levels and metrics are its own, and the metric
`task_reward` shows how far the learned reward and the task's reward agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from marl_ray.core.chat import Prompt
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import Evidence, Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments import abilities
from marl_ray.environments.abilities import AnswersInOrder, AsksExpert, DecidesSolved, HasProbes
from marl_ray.environments.base import Environment, Executor, collect_programs, group_reports
from marl_ray.environments.wrapped_environment import WrappedEnvironment, base_environment
from marl_ray.plugins.preferences.reward_models.joint_text import JointText, joint_text
from marl_ray.plugins.preferences.reward_models.options import RewardModelConfig
from marl_ray.plugins.preferences.reward_models.reward_model import RewardModel, is_reward_model

if TYPE_CHECKING:
    from marl_ray.config import Config

NAME = "reward_model"


@dataclass(frozen=True, slots=True)
class ScoredAttempt:
    """The attempt of the task's environment and the text that the reward model reads."""

    of_task: Any
    text: JointText
    answers: tuple[str, ...]

    @property
    def program(self) -> tuple[Any, ...]:
        """The programs of the task's attempt, then the text."""
        return (*collect_programs([self.of_task]), self.text)


@dataclass(frozen=True, slots=True)
class EvidenceOfTask:
    """The outcome of the task's environment."""

    outcome: Outcome

    def data(self) -> dict[str, Any]:
        task_reward = {"task_reward": self.outcome.reward}
        if self.outcome.evidence is None:
            return task_reward
        return {**task_reward, **self.outcome.evidence.data()}

    def lines(self) -> list[str]:
        if self.outcome.evidence is None:
            return []
        return self.outcome.evidence.lines()


class LearnedReward(WrappedEnvironment[ScoredAttempt], DecidesSolved, AnswersInOrder, AsksExpert, HasProbes):
    """An environment `base` whose reward is the score of a reward model, the same for all agents.

    The model reads the prompts that agents have before any of them answers, in later turns too, and the answers of the
    turn (`joint_text`). It is loaded on first use, and computes in a thread of this process.
    """

    def __init__(self, base: Environment[Any], settings: RewardModelConfig) -> None:
        super().__init__(base, base.num_agents)
        self.settings = settings

    @classmethod
    def from_config(cls, config: Config) -> Self:
        settings = config.section(RewardModelConfig)
        base = base_environment(config, "reward_model.environment", settings.environment, config.agents)
        if not settings.name:
            raise UserError(
                "environment reward_model needs a model: set reward_model.name to a folder of marl-ray rewardmodel"
            )
        if not is_reward_model(settings.name):
            raise UserError(f"{settings.name} is no reward model: train one from it with marl-ray rewardmodel")
        return cls(base, settings)

    @cached_property
    def model(self) -> RewardModel:
        """The reward model, loaded on first use."""
        settings = self.settings
        assert settings.name is not None
        return RewardModel.load(settings.name, settings.device, settings.max_length, settings.threads)

    def roles(self, task: Task) -> list[str]:
        return self.base.roles(task)

    def first_prompts(self, task: Task) -> Sequence[Prompt]:
        return self.base.first_prompts(task)

    def order(self, task: Task) -> list[list[int]]:
        return abilities.order(self.base, task)

    def prompt_after(self, task: Task, agent: int, prompt: Any, answers: Mapping[int, str]) -> Prompt:
        return abilities.prompt_after(self.base, task, agent, prompt, answers)

    def revisions(self, task: Task) -> list[str]:
        return self.base.revisions(task)

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> ScoredAttempt:
        text = joint_text(self.base.first_prompts(task), responses)
        of_task = self.base.attempt(task, responses, last)
        answers = abilities.previous_answers(self.base, of_task)
        return ScoredAttempt(of_task, text, tuple(answers))

    async def execute(self, programs: Sequence[Any], sandbox: Executor) -> list[Any]:
        texts = [program for program in programs if isinstance(program, JointText)]
        others = [program for program in programs if not isinstance(program, JointText)]
        # The score of a text is the same whatever is scored beside it, so equal texts are scored once.
        texts = list(dict.fromkeys(texts))
        reports, scores = await gather(
            self._executed(others, sandbox),
            asyncio.to_thread(self._scores, texts),
        )
        score_of = dict(zip(texts, scores, strict=True))
        remaining = iter(reports)
        results: list[Any] = []
        for program in programs:
            if isinstance(program, JointText):
                results.append(score_of[program])
            else:
                results.append(next(remaining))
        return results

    async def _executed(self, programs: Sequence[Any], sandbox: Executor) -> list[Any]:
        if not programs:
            return []
        return await super().execute(programs, sandbox)

    def _scores(self, texts: Sequence[JointText]) -> list[float]:
        if not texts:
            return []  # without loading the model
        return self.model.score([joint.text for joint in texts])

    def outcome(self, attempt: ScoredAttempt, report: Any) -> Outcome:
        outcome = self.base.outcome(attempt.of_task, _task_report(attempt, report))
        return _scored(outcome, report[-1])

    def feedback(self, attempt: ScoredAttempt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return self.base.feedback(attempt.of_task, _task_outcome(outcome), mode, agent)

    def solved(self, attempt: ScoredAttempt, outcome: Outcome, tests: str) -> bool:
        return abilities.solved(self.base, attempt.of_task, _task_outcome(outcome), tests)

    def question(self, task: Task, attempt: ScoredAttempt) -> str:
        return abilities.question(self.base, task, attempt.of_task)

    def probes(self, attempt: ScoredAttempt, report: Any) -> list[Any]:
        return abilities.probes(self.base, attempt.of_task, _task_report(attempt, report))

    def probed_outcome(self, attempt: ScoredAttempt, report: Any, outcome: Outcome, reports: Sequence[Any]) -> Outcome:
        if outcome.failure:
            return outcome
        of_task = abilities.probed_outcome(
            self.base,
            attempt.of_task,
            _task_report(attempt, report),
            _task_outcome(outcome),
            reports,
        )
        return _scored(of_task, report[-1])


def _task_report(attempt: ScoredAttempt, report: Sequence[Any]) -> Any:
    """Return the report on the task's attempt, without the score."""
    return group_reports([attempt.of_task], report[:-1])[0]


def _scored(outcome: Outcome, score: float) -> Outcome:
    """Return the outcome of the task with the score as its reward."""
    if outcome.failure:
        return outcome
    evidence: Evidence = EvidenceOfTask(outcome)
    metrics = {**outcome.metrics, "task_reward": outcome.reward}
    return replace(
        outcome,
        reward=score,
        levels={NAME: score},
        metrics=metrics,
        rewards=(),
        evidence=evidence,
    )


def _task_outcome(outcome: Outcome) -> Outcome:
    """Return the outcome of the task's environment."""
    assert isinstance(outcome.evidence, EvidenceOfTask), "an outcome of this environment"
    return outcome.evidence.outcome
