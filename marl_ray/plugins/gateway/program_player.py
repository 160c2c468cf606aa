"""Episodes of programs: the runs of one task are the joint actions of one node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import filterfalse, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from marl_ray.config import Config
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import (
    NOT_CALLED,
    AgentCall,
    BranchReplay,
    Episode,
    JointAction,
    Node,
    Outcome,
    Stop,
    Task,
    bounded_outcome,
)
from marl_ray.core.errors import UserError
from marl_ray.core.random_streams import random_stream
from marl_ray.environments.base import Executor
from marl_ray.environments.plugin_checks import TURN_NAMES
from marl_ray.plugins.gateway.program_episode import AgentAccess, ProgramEpisode, TokenGenerator
from marl_ray.plugins.gateway.program_result import ProgramFailed, ProgramResult, parse_result
from marl_ray.plugins.gateway.replays import SAMPLED, RecordedAnswers, RequestKey, Script, choose_requests
from marl_ray.rollout.baselines import Baselines
from marl_ray.rollout.player import Player, sampling_of
from marl_ray.rollout.scorer import Scorer, joint_action

if TYPE_CHECKING:
    from marl_ray.plugins.gateway.environment import GatewayEnvironment
    from marl_ray.plugins.gateway.server import GatewayServer

logger = logging.getLogger(__name__)

RunKey = tuple[str | int, ...]
"""Name of the random streams of a run."""

LOGGED_FAILURES = 10
"""Number of failed episodes of a run whose reasons are logged; all are counted in the metric `gateway/failed`."""
MAX_DIVERGED = 64
"""Number of refused replays after which a run ends, if none was kept."""
OTHER_PROMPTS = (
    "has asked other prompts than the recorded run, because of a clock, "
    "of random numbers or of the order of concurrent answers"
)
DIVERGED = "its requests are not the recorded ones"
"""Reason of a replay whose program did not repeat its requests."""


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """A finished run of a program: its calls, and its outcome, or the reason why there is none."""

    key: RunKey
    script: Script
    calls: tuple[AgentCall, ...]
    answers: RecordedAnswers
    outcome: Outcome | None
    failure: str = ""

    @property
    def has_reward(self) -> bool:
        return self.outcome is not None and not self.outcome.unscored


@dataclass(frozen=True, slots=True)
class ChosenRequests:
    """The requests of the first run that were sampled anew, and the factor of their gradient."""

    requests: list[RequestKey]
    weight: float


NOTHING_CHOSEN = ChosenRequests([], 1.0)


class ProgramPlayer(Player):
    """Plays programs in place of turns. `run_episode` plays G runs of a task."""

    def __init__(
        self,
        config: Config,
        environment: GatewayEnvironment,
        generators: Sequence[Any],
        executor: Executor,
    ) -> None:
        super().__init__(config)
        self.gateway = environment
        self._generators = list[TokenGenerator](generators)
        self._removed_agents = Baselines(config.agents, config.training.counterfactual).counterfactual_agents
        """Agents without which each run is played once more."""
        self._judge: Scorer | None = None
        if environment.judge is not None:
            self._judge = Scorer(config, environment.judge, executor)

    async def run_episode(
        self,
        task: Task,
        num_generations: int | Sequence[int],
        *key: str | int,
        evaluation: bool = False,
        on_node: Callable[[Node], None] = lambda node: None,
        priority: int = 0,
    ) -> Episode:
        """Return the episode of a task, with one joint action per run of the program that has a reward."""
        size = num_generations if isinstance(num_generations, int) else num_generations[0]
        name = (*key, task.id)
        chosen = NOTHING_CHOSEN
        if evaluation or self.gateway.settings.credit == "runs":
            playing = []
            for number in range(size):
                playing.append(self._play(task, (*name, number), evaluation, priority))
            runs: list[PlayedEpisode] = await gather(*playing)
        else:
            runs, chosen = await self._play_branches(task, name, size, priority)
        rewarded = []
        unscored = []
        lost = []
        for run in runs:
            if run.has_reward:
                rewarded.append(run)
            elif run.outcome is not None:
                unscored.append(run.outcome)
            else:
                lost.append(run)
        removals: dict[int, list[float]] = {}
        if self._removed_agents and not evaluation:
            rewarded, removals = await self._without_agents(task, rewarded, lost, priority)
        # Without the first run, its replays have nothing in common.
        if not rewarded or (chosen.requests and rewarded[0] is not runs[0]):
            stop = Stop((), "infra_error", next((run.failure for run in lost), ""))
            if unscored:
                stop = Stop((), "unscored", unscored[0].failure)
            return Episode(task, None, [stop], unscored=unscored)
        node = self._node(rewarded, lost)
        node.replays = _branch_replays(node, rewarded, chosen)
        node.counterfactuals = removals
        on_node(node)
        return Episode(task, node, unscored=unscored, roles=tuple(self.gateway.roles(task)))

    async def _play_branches(
        self, task: Task, name: RunKey, size: int, priority: int
    ) -> tuple[list[PlayedEpisode], ChosenRequests]:
        """Return a run of the program, the runs that sample one of its requests anew, and these requests."""
        first = await self._play(task, (*name, 0), False, priority)
        if not first.has_reward:
            return [first], NOTHING_CHOSEN
        learning: list[int] = []
        for number, agent in enumerate(self.config.agents):
            if agent.learning_rate > 0:
                learning.append(number)
        rng = random_stream(self.config.seed, "branch_replays", *name)
        chosen = ChosenRequests(*choose_requests(first.answers, learning, self.gateway.settings.replayed_calls, rng))
        playing = []
        for request in chosen.requests:
            for sibling in range(1, size):
                script = Script(first.answers, request, sibling)
                playing.append(self._play(task, first.key, False, priority, script))
        return [first, *await gather(*playing)], chosen

    async def _without_agents(
        self, task: Task, runs: Sequence[PlayedEpisode], lost: list[PlayedEpisode], priority: int
    ) -> tuple[list[PlayedEpisode], dict[int, list[float]]]:
        """Return the runs that have a reward without each agent whose estimator needs it, and by agent these rewards.

        Other runs are added to `lost`. A run without an agent does not depend on the agent's answers, so
        leaving runs out adds no bias.
        """
        playing = []
        for run in runs:
            for agent in self._removed_agents:
                playing.append(self._play(task, run.key, False, priority, Script(run.answers, absent=agent)))
        removed = iter(await gather(*playing))
        kept: list[PlayedEpisode] = []
        rewards: dict[int, list[float]] = {}
        for run in runs:
            without = list(islice(removed, len(self._removed_agents)))
            failed = list(filterfalse(attrgetter("has_reward"), without))
            if failed:
                lost.append(replace(run, outcome=None, failure=failed[0].failure))
                continue
            assert run.outcome is not None
            counts = dict(run.outcome.counts)
            counts["gateway/removal_tokens"] = sum(map(_sampled_tokens, without))
            kept.append(replace(run, outcome=replace(run.outcome, counts=counts)))
            for agent, one in zip(self._removed_agents, without, strict=True):
                assert one.outcome is not None
                action = joint_action((), one.outcome, self.config.reward_processor, self.config.num_agents)
                rewards.setdefault(agent, []).append(action.rewards[agent])
        return kept, rewards

    async def _play(
        self, task: Task, key: RunKey, evaluation: bool, priority: int, script: Script = SAMPLED
    ) -> PlayedEpisode:
        """Return one run of the program."""
        settings = self.gateway.settings
        async with self.gateway.limit:
            server = await self.gateway.server()
            for attempt in range(settings.retries + 1):
                # Every attempt has the same random numbers: an answer does not depend on the number of attempts.
                episode = ProgramEpisode(
                    task,
                    self._agents(evaluation),
                    (self.config.seed, key),
                    settings.max_calls,
                    priority,
                    self._task_data(task),
                    server.base_url,
                    script,
                )
                try:
                    outcome = await self._attempt(episode, server)
                except ProgramFailed as error:
                    failure = str(error)
                else:
                    return self._finished(episode, outcome, 0, attempt)
            return self._failed(episode, failure)

    async def _attempt(self, episode: ProgramEpisode, server: GatewayServer) -> Outcome:
        """Return the outcome of one run of the program. Raises ProgramFailed."""
        timeout_s = self.gateway.settings.timeout_s
        failure = ""
        value = None
        with server.serving(episode):
            try:
                async with asyncio.timeout(timeout_s):
                    value = await self.gateway.program.play(episode)
            except TimeoutError:
                failure = f"it ran longer than {timeout_s:g} s (gateway.timeout_s)"
            except ProgramFailed as error:
                failure = str(error)
            except BaseException:  # the run ends: its generators are about to stop
                episode.cancel()
                raise
        # A call whose first part the program has read belongs to the episode, also after the program's end.
        await episode.finish()
        if episode.broken is not None:
            raise episode.broken
        if failure or episode.failure:
            raise ProgramFailed(failure or episode.failure)
        result = parse_result(value, self.gateway.names, not self._judge)
        outcome = bounded_outcome(await self._outcome(episode, result))
        if outcome.failure and not outcome.unscored:
            raise ProgramFailed(outcome.failure)
        return outcome

    def _failed(self, episode: ProgramEpisode, reason: str) -> PlayedEpisode:
        settings = self.gateway.settings
        task = episode.task.id
        absent = episode.script.absent
        if absent is not None:
            estimator = self.config.agents[absent].estimator
            name = self.gateway.names[absent]
            reason = f"with empty answers of {name}, as estimator {estimator} requires: {reason}"
        self.gateway.failures += 1
        if self.gateway.failures < LOGGED_FAILURES:
            logger.warning(f"an episode of task {task} failed: {reason}")
        elif self.gateway.failures == LOGGED_FAILURES:
            more = "more are only counted, in gateway/failed"
            logger.warning(f"an episode of task {task} failed: {reason}; {more}")
        if settings.on_failure == "lost":
            return self._lost(episode, f"{task}: {reason}")
        return self._finished(episode, Outcome(0.0), 1, settings.retries)

    def _lost(self, episode: ProgramEpisode, reason: str) -> PlayedEpisode:
        return PlayedEpisode(episode.key[1], episode.script, (), {}, None, reason)

    def _finished(self, episode: ProgramEpisode, outcome: Outcome, failed: int, retried: int) -> PlayedEpisode:
        script = episode.script
        if not script.is_kept_by(episode.answers):
            self._count_refusal(episode.task)
            return self._lost(episode, DIVERGED)
        if script.anew is not None:
            self.gateway.kept_replays += 1
        if not episode.calls and not self.gateway.warned_of_no_call:
            self.gateway.warned_of_no_call = True
            names = ", ".join(self.gateway.names)
            advice = f"ask the models {names} at OPENAI_BASE_URL, or with episode.ask"
            logger.warning(f"a run of task {episode.task.id} has called no agent: {advice}")
        counts = {
            "gateway/failed": failed,
            "gateway/retried": retried,
            "gateway/calls": len(episode.calls),
            "gateway/rewritten": episode.rewritten,
            "gateway/replays": int(script.anew is not None),
        }
        outcome = replace(outcome, counts={**outcome.counts, **counts})
        return PlayedEpisode(episode.key[1], script, tuple(episode.calls), episode.answers, outcome)

    def _count_refusal(self, task: Task) -> None:
        """Count a replay that made other requests. Raises UserError after many, if none was kept."""
        gateway = self.gateway
        gateway.diverged += 1
        if gateway.diverged == 1:
            logger.warning(
                f"a run of task {task.id} that got recorded answers {OTHER_PROMPTS}: "
                "it is left out, and counted in gateway/diverged"
            )
        if gateway.diverged >= MAX_DIVERGED and not gateway.kept_replays:
            raise UserError(
                f"each of {MAX_DIVERGED} runs that got recorded answers {OTHER_PROMPTS}: "
                "make the program repeat itself, or set gateway.credit to runs"
            )

    async def _outcome(self, episode: ProgramEpisode, result: ProgramResult) -> Outcome:
        """Return the outcome of a result: the program's reward, or the judge's, which may be unscored. Raises
        ProgramFailed."""
        metrics = {name: value for name, value in result.metrics.items() if name not in TURN_NAMES}
        if self._judge is None:
            return Outcome(result.reward, metrics=metrics, rewards=result.rewards)
        answers = result.answers
        if answers is None:
            # Calls are in the order of their ends, so that each agent's last call remains.
            last = {call.agent: call.completion.text for call in episode.calls}
            answers = tuple(last.get(agent, "") for agent in range(self.config.num_agents))
        attempt = self._judge.environment.attempt(episode.task, answers, True)
        (outcome,) = await self._judge.outcomes([attempt])
        if outcome.failure and not outcome.unscored:
            raise ProgramFailed(f"the judge gave no verdict: {outcome.failure}")
        return replace(outcome, metrics={**outcome.metrics, **metrics})

    def _task_data(self, task: Task) -> dict[str, Any]:
        """Return the task as the program reads it, with the prompts of the judge."""
        data = self.gateway.shown(task)
        if self.gateway.judge is not None:
            prompts = self.gateway.judge.first_prompts(task)
            data["prompts"] = dict(zip(self.gateway.names, prompts, strict=True))
        return data

    def _agents(self, evaluation: bool) -> list[AgentAccess]:
        renderers = self.gateway.renderers(self.config.agents, self.config.model)
        agents: list[AgentAccess] = []
        for agent, name in enumerate(self.gateway.names):
            # The seed is never used: each call gets a seed of its own, from its place in the episode.
            sampling = sampling_of(self.config, agent, evaluation, (), 1)
            agents.append(AgentAccess(name, self._generators[agent], sampling, renderers[agent]))
        return agents

    def _node(self, played: Sequence[PlayedEpisode], lost: Sequence[PlayedEpisode]) -> Node:
        """Return the runs of a task as one node. `lost` are the runs without a reward."""
        agents = range(self.config.num_agents)
        calls: list[list[AgentCall]] = [[] for _ in agents]
        actions: list[JointAction] = []
        for number, run in enumerate(played):
            for agent in agents:
                calls_of_agent = [call for call in run.calls if call.agent == agent]
                if not calls_of_agent:
                    # A joint action has a completion of each agent.
                    calls_of_agent = [AgentCall(agent, "", (), NOT_CALLED)]
                for call in calls_of_agent:
                    branch = len(calls[agent]) + 1
                    calls[agent].append(replace(call, branch=branch, sibling=number))
            outcome = run.outcome
            assert outcome is not None
            if number == 0:
                # Lost runs have no joint action: the first one counts them.
                diverged = sum(run.failure == DIVERGED for run in lost)
                counts = {"gateway/diverged": diverged, "gateway/failed": len(lost) - diverged}
                for name, count in counts.items():
                    counts[name] = count + outcome.counts.get(name, 0)
                outcome = replace(outcome, counts={**outcome.counts, **counts})
            last_calls = tuple(len(calls[agent]) - 1 for agent in agents)
            action = joint_action(last_calls, outcome, self.config.reward_processor, self.config.num_agents)
            actions.append(action)
        return Node(0, calls, actions)


def _sampled_tokens(run: PlayedEpisode) -> int:
    """Return the number of tokens that a run sampled: answers that are neither recorded nor empty."""
    tokens = 0
    for call in run.calls:
        if not call.repeated:
            tokens += len(call.completion.token_ids)
    return tokens


def _branch_replays(node: Node, runs: Sequence[PlayedEpisode], chosen: ChosenRequests) -> list[BranchReplay]:
    """Return the calls of a node that were sampled anew, each with the recorded call. The first run is the recorded
    one."""
    replays: list[BranchReplay] = []
    for request in chosen.requests:
        agent = request[0]
        indices: list[int] = []
        for index, call in enumerate(node.calls[agent]):
            assert call.sibling is not None
            run = runs[call.sibling]
            is_sibling = call.sibling == 0 or run.script.anew == request
            if is_sibling and any(call.completion is sampled for sampled in run.answers[request]):
                indices.append(index)
        replays.append(BranchReplay(agent, tuple(indices), chosen.weight))
    return replays
