"""Training with frozen partners: the reward of an agent is a mean over partners, so that it learns no private
convention with the one partner that learns beside it (fictitious co-play: Strouse et al., 2021, "Collaborating with
Humans without Human Data").

The config lists frozen agents after the team, for example trained models of other seeds. Each stands in for one agent
of the team and receives its prompts. A joint action then has one program per team: the team itself, and for each frozen
agent the team with this substitute. To the trainer a frozen agent is an ordinary agent that does not learn, so that
staleness, replay and resuming hold without exception. Its reward is always 0: there is no gradient to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self

from marl_ray.core.chat import Prompt
from marl_ray.core.episode import Evidence, Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.base import Environment, collect_programs, group_reports
from marl_ray.environments.wrapped_environment import WrappedEnvironment, base_environment
from marl_ray.plugins.frozen_partners.options import PartnersConfig

if TYPE_CHECKING:
    from marl_ray.config import Config


@dataclass(frozen=True, slots=True)
class AttemptOfTeams:
    """The attempts of all teams: the team's own, then one per frozen partner."""

    of_teams: tuple[Any, ...]

    @property
    def program(self) -> tuple[Any, ...]:
        """The programs of all teams."""
        return tuple(collect_programs(self.of_teams))


@dataclass(frozen=True, slots=True)
class EvidenceOfTeams:
    """The outcomes of all teams. Logs show the evidence of the team's own."""

    outcomes: tuple[Outcome, ...]

    @property
    def own(self) -> Evidence | None:
        return self.outcomes[0].evidence

    def data(self) -> dict[str, Any]:
        rewards = {"partner_rewards": [outcome.reward for outcome in self.outcomes[1:]]}
        return rewards | ({} if self.own is None else self.own.data())

    def lines(self) -> list[str]:
        return [] if self.own is None else self.own.lines()


class FrozenPartners(WrappedEnvironment[AttemptOfTeams]):
    """An environment `base` of a team, with one frozen agent per entry of `stand_in`, the number of the agent that it
    stands in for. `weight` is the share of partners in the rewards.

    With w for the weight, R_0 for the reward of agent i in the team itself, and R_k for its reward in the team with
    partner k, agent i earns (1 - w) R_0 + w mean_k R_k over the partners that stand in for another agent, and R_0
    without such a partner. `Outcome.reward`, its levels and its metrics are the team's own; `partner_reward` is the
    mean reward with partners.
    """

    def __init__(self, base: Environment[Any], stand_in: Sequence[int], weight: float) -> None:
        super().__init__(base, base.num_agents + len(stand_in))
        self.stand_in, self.weight = tuple(stand_in), weight

    @classmethod
    def from_config(cls, config: Config) -> Self:
        settings, team = config.section(PartnersConfig), config.team_size
        if not settings.stand_in:
            raise UserError(
                "environment frozen_partners has no partner: set partners.stand_in to one number per frozen agent"
            )
        if team < 2 or not all(agent in range(team) for agent in settings.stand_in):
            raise UserError(
                f"partners.stand_in {list(settings.stand_in)} leaves a team of {team} of {config.num_agents} agents: "
                "list at least two agents, then the frozen ones, and name the agents that these stand in for, from 0"
            )
        for number in range(team, config.num_agents):
            if config.agents[number].learning_rate:
                raise UserError(f"agent {number} is a frozen partner: set agents.{number}.learning_rate to 0")
        base = base_environment(config, "partners.environment", settings.environment, config.agents[:team])
        return cls(base, settings.stand_in, settings.weight)

    def check_task(self, task: Task) -> None:
        """Raise UserError for a task of another environment, or whose agents answer one after another: an answer that
        was written after one partner's answer says nothing about another partner."""
        super().check_task(task)
        if len(self.base.order(task)) > 1:
            raise UserError(
                "environment frozen_partners needs agents that answer at the same time, and in "
                f"{type(self.base).__name__} later agents read the earlier answers: choose another environment"
            )

    def roles(self, task: Task) -> list[str]:
        roles = self.base.roles(task)
        return [*roles, *(f"{roles[agent]} (partner {number})" for number, agent in enumerate(self.stand_in, 1))]

    def first_prompts(self, task: Task) -> Sequence[Prompt]:
        return self._with_stand_ins(self.base.first_prompts(task))

    def revisions(self, task: Task) -> list[str]:
        return self._with_stand_ins(self.base.revisions(task))

    def _with_stand_ins(self, values: Sequence[Any]) -> list[Any]:
        """Return the values of the team's agents, then the values of the agents that frozen agents stand in for."""
        return [*values, *(values[agent] for agent in self.stand_in)]

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> AttemptOfTeams:
        team, answers = list(responses[: self.base.num_agents]), responses[self.base.num_agents :]
        teams = [team]
        for agent, answer in zip(self.stand_in, answers, strict=True):
            teams.append([*team[:agent], answer, *team[agent + 1 :]])
        return AttemptOfTeams(tuple(self.base.attempt(task, texts, last) for texts in teams))

    def outcome(self, attempt: AttemptOfTeams, report: Any) -> Outcome:
        reports = group_reports(attempt.of_teams, report)
        teams = zip(attempt.of_teams, reports, strict=True)
        return self._joined([self.base.outcome(own, own_report) for own, own_report in teams])

    def _joined(self, outcomes: Sequence[Outcome]) -> Outcome:
        """Return the team's outcome with each agent's reward and the counts of all teams."""
        own, partners = outcomes[0], outcomes[1:]
        for outcome in outcomes:
            if outcome.failure:
                return replace(own, failure=outcome.failure, unscored=outcome.unscored)
        rewards = [(1 - self.weight) * own_reward(own, agent) for agent in range(self.base.num_agents)]
        for agent in range(self.base.num_agents):
            others = [o for o, stand_in in zip(partners, self.stand_in, strict=True) if stand_in != agent]
            with_partners = fmean(own_reward(outcome, agent) for outcome in others or [own])
            rewards[agent] += self.weight * with_partners
        counts = {name: sum(outcome.counts[name] for outcome in outcomes) for name in own.counts}
        metrics = {**own.metrics, "partner_reward": fmean(outcome.reward for outcome in partners)}
        padded = (*rewards, *(0.0 for _ in self.stand_in))
        return replace(own, metrics=metrics, counts=counts, rewards=padded, evidence=EvidenceOfTeams(tuple(outcomes)))

    def feedback(self, attempt: AttemptOfTeams, outcome: Outcome, mode: str, agent: int) -> list[str]:
        """Return the feedback on the agent's own team: for a frozen agent, the team in which it answered."""
        team, role = self._seat(agent)
        return self.base.feedback(attempt.of_teams[team], outcomes_of(outcome)[team], mode, role)

    def _seat(self, agent: int) -> tuple[int, int]:
        """Return the number of an agent's team, and of the agent in it."""
        partner = agent - self.base.num_agents
        return (0, agent) if partner < 0 else (partner + 1, self.stand_in[partner])

    def previous_answers(self, attempt: AttemptOfTeams) -> list[str]:
        answers = [self.base.previous_answers(own) for own in attempt.of_teams]
        seats = map(self._seat, range(self.num_agents))
        return [answers[team][role] for team, role in seats]

    def solved(self, attempt: AttemptOfTeams, outcome: Outcome, tests: str) -> bool:
        """Return whether the team's own joint action solves the task."""
        return self.base.solved(attempt.of_teams[0], outcomes_of(outcome)[0], tests)

    def probes(self, attempt: AttemptOfTeams, report: Any) -> list[Any]:
        return [program for of_team in self._probes(attempt, report) for program in of_team]

    def _probes(self, attempt: AttemptOfTeams, report: Any) -> list[list[Any]]:
        teams = zip(attempt.of_teams, group_reports(attempt.of_teams, report), strict=True)
        return [self.base.probes(own, own_report) for own, own_report in teams]

    def probed_outcome(self, attempt: AttemptOfTeams, report: Any, outcome: Outcome, reports: Sequence[Any]) -> Outcome:
        if outcome.failure:
            return outcome
        remaining = iter(reports)
        of_probes = [[next(remaining) for _ in of_team] for of_team in self._probes(attempt, report)]
        teams = zip(
            attempt.of_teams,
            group_reports(attempt.of_teams, report),
            outcomes_of(outcome),
            of_probes,
            strict=True,
        )
        return self._joined([self.base.probed_outcome(*of_team) for of_team in teams])


def own_reward(outcome: Outcome, agent: int) -> float:
    """Return an agent's reward."""
    return outcome.rewards[agent] if outcome.rewards else outcome.reward


def outcomes_of(outcome: Outcome) -> tuple[Outcome, ...]:
    """Return the outcomes of all teams."""
    assert isinstance(outcome.evidence, EvidenceOfTeams), "an outcome of this environment"
    return outcome.evidence.outcomes
