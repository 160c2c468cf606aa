"""Scoring joint actions: responses -> attempts -> programs -> reports -> outcomes -> rewards.

The same scorer serves every source of joint actions: the turns of an episode, the answers of programs, recombined
answers and the baselines of estimators. A scorer samples nothing and has no state, so that one scorer may be used
concurrently, and several scorers of one environment agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any

from marl_ray.config import Config
from marl_ray.config.sections import RewardProcessorConfig
from marl_ray.cooperation.token_counts import path_tokens
from marl_ray.core.episode import Completion, JointAction, Node, Outcome, Task, Texts
from marl_ray.credit.inputs import knows_counterfactuals
from marl_ray.environments import abilities
from marl_ray.environments.base import Attempt, Environment, Executor, collect_programs, group_reports
from marl_ray.environments.plugin_checks import check_reports, checked_outcome, qualified_method_name
from marl_ray.rollout.baselines import Baselines, add_baselines
from marl_ray.rollout.turn import TurnResult
from marl_ray.rollout.unscored import NoVerdict, keep_joint_actions


@dataclass(slots=True)
class RewardTally:
    """The outcomes of an episode so far: their number, and the outcomes without a reward."""

    calls: int = 0
    unscored: list[Outcome] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ScoredTurn:
    """A node with rewards, and the attempt of each of its joint actions."""

    node: Node
    attempts: list[Attempt]


class Scorer:
    """Evaluates joint actions in an environment, and executes their programs."""

    def __init__(self, config: Config, environment: Environment[Any], executor: Executor) -> None:
        self.config = config
        self.environment = environment
        self.executor = executor
        self.baselines = Baselines(config.agents, config.training.counterfactual)

    async def score_turn(
        self,
        task: Task,
        turn: int,
        sampled: TurnResult,
        greedy: Sequence[Completion],
        tally: RewardTally,
        evaluation: bool,
    ) -> ScoredTurn:
        """Return the node of the sampled joint actions. In training it has the baselines of the estimators, of which
        `greedy` are the agents' greedy completions. Raises NoVerdict."""
        last = turn + 1 == self.config.training.num_turns
        attempts: list[Attempt] = []
        for indices in sampled.indices:
            texts: list[str] = []
            for calls, index in zip(sampled.calls, indices, strict=True):
                texts.append(calls[index].completion.text)
            attempts.append(self.environment.attempt(task, texts, last))
        probing = self.config.output.probe_helpers
        probe = probing == "always" or (probing == "eval" and evaluation)
        outcomes = await self._verdicts(attempts, tally, probe)
        actions: list[JointAction] = []
        for indices, outcome in zip(sampled.indices, outcomes, strict=True):
            actions.append(self._joint_action(indices, outcome))
        node = Node(turn, sampled.calls, actions)
        coefficient = self.config.training.latency_coef
        if coefficient:
            rounds = abilities.order(self.environment, task)
            for g, action in enumerate(actions):
                actions[g] = replace(action, latency=coefficient * path_tokens(node, action, rounds))
        # A joint action without a reward leaves its group; the siblings are compared without it.
        scored = [g for g, outcome in enumerate(outcomes) if not outcome.unscored]
        if len(scored) < len(outcomes):
            node = keep_joint_actions(node, scored)
            attempts = [attempts[g] for g in scored]
        if not evaluation:
            baselines = self.baselines
            if not knows_counterfactuals(turn, self.config.training):
                baselines = Baselines((), self.baselines.counterfactual)  # no replaced completions
            await add_baselines(node, greedy, baselines, partial(self._reward_joint, task, last, tally))
        return ScoredTurn(node, attempts)

    async def _reward_joint(
        self, task: Task, last: bool, tally: RewardTally, joint: Sequence[Texts]
    ) -> dict[Texts, JointAction]:
        """Return the joint actions of these texts with their rewards. Raises NoVerdict if one has no reward."""
        attempts = [self.environment.attempt(task, list(texts), last) for texts in joint]
        rewarded: dict[Texts, JointAction] = {}
        for texts, outcome in zip(joint, await self._verdicts(attempts, tally), strict=True):
            if outcome.unscored:
                raise NoVerdict("unscored", f"a joint action of a baseline has no reward: {outcome.failure}")
            rewarded[texts] = self._joint_action((), outcome)
        return rewarded

    async def _verdicts(self, attempts: Sequence[Attempt], tally: RewardTally, probe: bool = False) -> list[Outcome]:
        """Return the outcomes, some of which may be unscored. Raises NoVerdict if an execution failed."""
        outcomes = await self.outcomes(attempts, probe)
        tally.calls += len(outcomes)
        for outcome in outcomes:
            if outcome.unscored:  # left out alone
                tally.unscored.append(outcome)
            elif outcome.failure:  # a failed sandbox says nothing about any answer of the node
                raise NoVerdict("infra_error", outcome.failure)
        return outcomes

    async def rewards_of(self, task: Task, joint: Sequence[Sequence[str]]) -> list[float]:
        """Return the reward of each joint answer to the first prompts, NaN without a verdict."""
        last = self.config.training.num_turns == 1
        attempts = [self.environment.attempt(task, list(texts), last) for texts in joint]
        rewards: list[float] = []
        for outcome in await self.outcomes(attempts):
            reward = math.nan
            if not outcome.failure:
                reward = processed_reward(self.config.reward_processor, outcome.reward)
            rewards.append(reward)
        return rewards

    def score_text(self, task: Task, texts: Sequence[str], last: bool) -> JointAction | None:
        """Return a joint answer with its reward, in an environment without programs; None without a verdict."""
        attempt = self.environment.attempt(task, list(texts), last)
        outcome = checked_outcome(self.environment, "outcome", self.environment.outcome(attempt, None))
        if outcome.failure:
            return None
        return self._joint_action((), outcome)

    def _joint_action(self, indices: tuple[int, ...], outcome: Outcome) -> JointAction:
        return joint_action(indices, outcome, self.config.reward_processor, self.config.num_agents)

    async def outcomes(self, attempts: Sequence[Attempt], probe: bool = False) -> list[Outcome]:
        """Return each attempt's outcome, from one execution of its programs."""
        of_attempt = group_reports(attempts, await self._execute(collect_programs(attempts)))
        outcomes: list[Outcome] = []
        for attempt, report in zip(attempts, of_attempt, strict=True):
            outcomes.append(checked_outcome(self.environment, "outcome", self.environment.outcome(attempt, report)))
        if probe or abilities.pays_probes(self.environment):
            return await self._probe(attempts, of_attempt, outcomes)
        return outcomes

    async def _probe(
        self, attempts: Sequence[Attempt], reports: Sequence[Any], outcomes: Sequence[Outcome]
    ) -> list[Outcome]:
        """Return the outcomes after executing each attempt's probes."""
        probes: list[list[Any]] = []
        for attempt, report in zip(attempts, reports, strict=True):
            probes.append(abilities.probes(self.environment, attempt, report))
        # One execution for all attempts; its results are in the order of the programs.
        results = iter(await self._execute(list(chain.from_iterable(probes))))
        probed: list[Outcome] = []
        for attempt, report, outcome, programs in zip(attempts, reports, outcomes, probes, strict=True):
            probe_reports = list(islice(results, len(programs)))
            after = abilities.probed_outcome(self.environment, attempt, report, outcome, probe_reports)
            probed.append(checked_outcome(self.environment, "probed", after))
        return probed

    async def _execute(self, programs: list[Any]) -> list[Any]:
        reports = await abilities.execute(self.environment, programs, self.executor)
        check_reports(qualified_method_name(self.environment, "execute"), reports, len(programs))
        return reports


def joint_action(
    indices: tuple[int, ...], outcome: Outcome, processor: RewardProcessorConfig, num_agents: int
) -> JointAction:
    """Return a joint action with the rewards of its outcome after the configured scale and shift."""
    reward = processed_reward(processor, outcome.reward)
    own = outcome.rewards or (outcome.reward,) * num_agents
    return JointAction(indices, outcome, reward, tuple(processed_reward(processor, each) for each in own))


def processed_reward(processor: RewardProcessorConfig, reward: float) -> float:
    """Return a reward after the configured scale and shift."""
    if not processor.enabled:
        return reward
    return reward * processor.scale_factor + processor.shift
