"""A centralised actor: one policy writes the parts of all agents of a team in one completion, as a baseline for teams.

The environment of the team does not change: it receives the parts that a parser finds in the completion. The policy
reads the prompts of all agents, has as many tokens as the team, and earns the team's reward. CoMLRL 1.4.3 calls this
baseline centralized MAGRPO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from marl_ray.core.chat import as_text
from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments import abilities
from marl_ray.environments.abilities import DecidesSolved, HasProbes
from marl_ray.environments.base import Environment
from marl_ray.environments.wrapped_environment import WrappedEnvironment, base_environment
from marl_ray.plugins.centralized.options import CentralizedConfig
from marl_ray.plugins.centralized.parts import first_prompt, join_parts, revision, split_parts

if TYPE_CHECKING:
    from marl_ray.config import Config

ROLE = "all parts"
"""Name of the only agent."""


@dataclass(frozen=True, slots=True)
class AttemptInParts:
    """The attempt of the team, and the share of its parts that have a tag in the completion. `answers` is one text with
    the answers of the team."""

    of_team: Any
    tagged: float
    answers: tuple[str]

    @property
    def program(self) -> Any | None:
        return self.of_team.program


class Centralized(WrappedEnvironment[AttemptInParts], DecidesSolved, HasProbes):
    """An environment `base` of a team, for one agent that writes all parts. Its reward is `Outcome.reward`."""

    def __init__(self, base: Environment[Any]) -> None:
        super().__init__(base, num_agents=1)

    @classmethod
    def from_config(cls, config: Config) -> Self:
        settings = config.section(CentralizedConfig)
        if config.num_agents != 1 or settings.team is None or settings.team < 2:
            raise UserError(
                f"environment centralized has one agent that writes the parts of a team of two or more: set "
                f"{config.algorithm}.num_agents to the size of the team and leave centralized.team out, or set "
                f"num_agents to 1 and centralized.team to the size of the team"
            )
        agents = config.agents * settings.team
        base = base_environment(config, "centralized.environment", settings.environment, agents)
        return cls(base)

    def roles(self, task: Task) -> list[str]:
        return [ROLE]

    def first_prompts(self, task: Task) -> list[str]:
        prompts = list(map(as_text, self.base.first_prompts(task)))
        return [first_prompt(self.base.roles(task), prompts)]

    def revisions(self, task: Task) -> list[str]:
        return [revision(self.base.roles(task), self.base.revisions(task))]

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> AttemptInParts:
        (completion,) = responses
        parts, tagged = split_parts(completion, self.base.num_agents)
        of_team = self.base.attempt(task, parts, last)
        answers = join_parts(abilities.previous_answers(self.base, of_team))
        return AttemptInParts(of_team, tagged / self.base.num_agents, (answers,))

    def outcome(self, attempt: AttemptInParts, report: Any) -> Outcome:
        outcome = self.base.outcome(attempt.of_team, report)
        return self._of_one_agent(attempt, outcome)

    def _of_one_agent(self, attempt: AttemptInParts, outcome: Outcome) -> Outcome:
        metrics = {**outcome.metrics, "tagged_parts": attempt.tagged}
        return replace(outcome, metrics=metrics, rewards=())

    def feedback(self, attempt: AttemptInParts, outcome: Outcome, mode: str, agent: int) -> list[str]:
        """Return the feedback for all agents of the team, each line once."""
        lines: dict[str, None] = {}
        for member in range(self.base.num_agents):
            feedback = self.base.feedback(attempt.of_team, outcome, mode, member)
            lines |= dict.fromkeys(feedback)
        return list(lines)

    def solved(self, attempt: AttemptInParts, outcome: Outcome, tests: str) -> bool:
        return abilities.solved(self.base, attempt.of_team, outcome, tests)

    def probes(self, attempt: AttemptInParts, report: Any) -> list[Any]:
        return abilities.probes(self.base, attempt.of_team, report)

    def probed_outcome(
        self,
        attempt: AttemptInParts,
        report: Any,
        outcome: Outcome,
        reports: Sequence[Any],
    ) -> Outcome:
        probed = abilities.probed_outcome(self.base, attempt.of_team, report, outcome, reports)
        return self._of_one_agent(attempt, probed)
