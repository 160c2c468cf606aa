"""Training with frozen partners: the reward of an agent is a mean over partners, so that it learns no private
convention with the one partner that learns beside it (fictitious co-play: Strouse et al., 2021, "Collaborating with
Humans without Human Data").

The config lists frozen agents after the team, for example trained models of other seeds. Each stands in for one agent
of the team and receives its prompts. A joint action then has one program per team: the team itself, and for each frozen
agent the team with this substitute. To the trainer a frozen agent is an ordinary agent that does not learn, so that
staleness, replay and resuming hold without exception. Its reward is always 0: there is no gradient to compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self

from marl_ray.core.chat import Prompt
from marl_ray.core.episode import Evidence, Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments import abilities
from marl_ray.environments.abilities import DecidesSolved, HasProbes
from marl_ray.environments.base import Environment, collect_programs, group_reports
from marl_ray.environments.wrapped_environment import WrappedEnvironment, base_environment
from marl_ray.plugins.frozen_partners.options import PartnersConfig

if TYPE_CHECKING:
    from marl_ray.config import Config


@dataclass(frozen=True, slots=True)
class AttemptOfTeams:
    """The attempts of all teams: the team's own, then one per frozen partner. `answers` has one entry per agent, frozen
    agents included."""

    of_teams: tuple[Any, ...]
    answers: tuple[str, ...]

    @property
    def program(self) -> tuple[Any, ...]:
        """The programs of all teams."""
        return tuple(collect_programs(self.of_teams))

    def with_reports(self, report: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Return each team's attempt with the report on it, from the reports on `program`."""
        return zip(self.of_teams, group_reports(self.of_teams, report), strict=True)


@dataclass(frozen=True, slots=True)
class EvidenceOfTeams:
    """The outcomes of all teams. Logs show the evidence of the team's own."""

    outcomes: tuple[Outcome, ...]

    @property
    def own(self) -> Evidence | None:
        return self.outcomes[0].evidence

    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = {"partner_rewards": [outcome.reward for outcome in self.outcomes[1:]]}
        if self.own is not None:
            data |= self.own.data()
        return data

    def lines(self) -> list[str]:
        if self.own is None:
            return []
        return self.own.lines()


class FrozenPartners(WrappedEnvironment[AttemptOfTeams], DecidesSolved, HasProbes):
    """An environment `base` of a team, with one frozen agent per entry of `stand_in`, the number of the agent that it
    stands in for. `weight` is the share of partners in the rewards.

    With w for the weight, R_0 for the reward of agent i in the team itself, and R_k for its reward in the team with
    partner k, agent i earns (1 - w) R_0 + w mean_k R_k over the partners that stand in for another agent, and R_0
    without such a partner. `Outcome.reward`, its levels and its metrics are the team's own; `partner_reward` is the
    mean reward with partners.
    """

    def __init__(self, base: Environment[Any], stand_in: Sequence[int], weight: float) -> None:
        super().__init__(base, base.num_agents + len(stand_in))
        self.stand_in = tuple(stand_in)
        self.weight = weight

    @classmethod
    def from_config(cls, config: Config) -> Self:
        settings = config.section(PartnersConfig)
        team = config.team_size
        if not settings.stand_in:
            raise UserError(
                "environment frozen_partners has no partner: set partners.stand_in to one number per frozen agent"
            )
        if team < 2 or max(settings.stand_in) >= team:
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
        if len(abilities.order(self.base, task)) > 1:
            raise UserError(
                "environment frozen_partners needs agents that answer at the same time, and in "
                f"{type(self.base).__name__} later agents read the earlier answers: choose another environment"
            )

    def roles(self, task: Task) -> list[str]:
        roles = self.base.roles(task)
        partners = [f"{roles[agent]} (partner {number})" for number, agent in enumerate(self.stand_in, 1)]
        return [*roles, *partners]

    def first_prompts(self, task: Task) -> Sequence[Prompt]:
        return self._with_stand_ins(self.base.first_prompts(task))

    def revisions(self, task: Task) -> list[str]:
        return self._with_stand_ins(self.base.revisions(task))

    def _with_stand_ins(self, values: Sequence[Any]) -> list[Any]:
        """Return the values of the team's agents, then the values of the agents that frozen agents stand in for."""
        return [*values, *map(values.__getitem__, self.stand_in)]

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> AttemptOfTeams:
        team = responses[: self.base.num_agents]
        own = self.base.attempt(task, list(team), last)
        attempts = [own]
        answers = list(abilities.previous_answers(self.base, own))
        for agent, response in zip(self.stand_in, responses[len(team) :], strict=True):
            substituted = self.base.attempt(task, [*team[:agent], response, *team[agent + 1 :]], last)
            attempts.append(substituted)
            answers.append(abilities.previous_answers(self.base, substituted)[agent])
        return AttemptOfTeams(tuple(attempts), tuple(answers))

    def outcome(self, attempt: AttemptOfTeams, report: Any) -> Outcome:
        return self._joined([self.base.outcome(*of_team) for of_team in attempt.with_reports(report)])

    def _joined(self, outcomes: Sequence[Outcome]) -> Outcome:
        """Return the team's outcome with each agent's reward and the counts of all teams."""
        own, *partners = outcomes
        for outcome in outcomes:
            if outcome.failure:
                return replace(own, failure=outcome.failure, unscored=outcome.unscored)
        rewards: list[float] = []
        for agent in range(self.base.num_agents):
            rewards_with_partners: list[float] = []
            for outcome, stand_in in zip(partners, self.stand_in, strict=True):
                if stand_in != agent:  # an agent has no reward in a team in which a partner takes its place
                    rewards_with_partners.append(own_reward(outcome, agent))
            with_team = own_reward(own, agent)
            with_partners = fmean(rewards_with_partners or [with_team])
            rewards.append((1 - self.weight) * with_team + self.weight * with_partners)
        counts: dict[str, int] = {}
        for name in own.counts:
            counts[name] = sum(outcome.counts[name] for outcome in outcomes)
        metrics = {**own.metrics, "partner_reward": fmean(outcome.reward for outcome in partners)}
        rewards += [0.0] * len(self.stand_in)  # frozen agents do not learn
        evidence = EvidenceOfTeams(tuple(outcomes))
        return replace(own, metrics=metrics, counts=counts, rewards=tuple(rewards), evidence=evidence)

    def feedback(self, attempt: AttemptOfTeams, outcome: Outcome, mode: str, agent: int) -> list[str]:
        """Return the feedback on the agent's own team: for a frozen agent, the team in which it answered."""
        partner = agent - self.base.num_agents
        team = 0
        role = agent
        if partner >= 0:
            team = partner + 1
            role = self.stand_in[partner]
        return self.base.feedback(attempt.of_teams[team], outcomes_of(outcome)[team], mode, role)

    def solved(self, attempt: AttemptOfTeams, outcome: Outcome, tests: str) -> bool:
        """Return whether the team's own joint action solves the task."""
        return abilities.solved(self.base, attempt.of_teams[0], outcomes_of(outcome)[0], tests)

    def probes(self, attempt: AttemptOfTeams, report: Any) -> list[Any]:
        return list(chain.from_iterable(self._probes(attempt, report)))

    def _probes(self, attempt: AttemptOfTeams, report: Any) -> list[list[Any]]:
        """Return the probes of each team."""
        return [abilities.probes(self.base, *of_team) for of_team in attempt.with_reports(report)]

    def probed_outcome(self, attempt: AttemptOfTeams, report: Any, outcome: Outcome, reports: Sequence[Any]) -> Outcome:
        if outcome.failure:
            return outcome
        remaining = iter(reports)
        probed: list[Outcome] = []
        teams = zip(attempt.with_reports(report), outcomes_of(outcome), self._probes(attempt, report), strict=True)
        for (of_team, team_report), before, programs in teams:
            probe_reports = list(islice(remaining, len(programs)))
            probed.append(abilities.probed_outcome(self.base, of_team, team_report, before, probe_reports))
        return self._joined(probed)


def own_reward(outcome: Outcome, agent: int) -> float:
    """Return an agent's reward."""
    if outcome.rewards:
        return outcome.rewards[agent]
    return outcome.reward


def outcomes_of(outcome: Outcome) -> tuple[Outcome, ...]:
    """Return the outcomes of all teams."""
    assert isinstance(outcome.evidence, EvidenceOfTeams), "an outcome of this environment"
    return outcome.evidence.outcomes
