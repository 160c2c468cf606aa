"""Scoring completions that are given: the environments' own way of a joint action, without a model and without Ray.

What a line gets is what a joint action of a rollout gets, by the same code: `attempt`, the player's way through the
sandbox to an outcome; and where a mode is asked for, the transition's prompts. `reward_processor`, a run's affine map,
is not applied.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from marl_ray.actors.sandbox_settings import sandbox_settings
from marl_ray.config import Config, from_tree
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.base import Environment, Executor
from marl_ray.environments.plugin_checks import check_texts, qualified_method_name
from marl_ray.evaluation.completions_file import JointResponse
from marl_ray.external.transition import Transition
from marl_ray.rollout.episode_runner import EpisodeRunner
from marl_ray.sandbox import SandboxSettings

AHEAD = 16
"""Lines in the work of each sandbox, so that none waits while a slow one holds up the order."""


class CompletionScorer:
    """Scores these joint actions, of tasks of one type. `mode`: what the next prompts come from; None: none follow.

    `overrides` are settings by dotted key, as of a run: what the environment, the sandbox and the modes read.
    Everything is checked here. Raises UserError.
    """

    def __init__(
        self,
        dataset_type: str,
        joints: Sequence[JointResponse],
        mode: str | None,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        self.mode = mode
        self._parts: dict[int, tuple[Config, Environment[Any], Transition]] = {}
        """By number of agents."""
        for number in sorted({len(joint.completions) for joint in joints}):
            config = _config(dataset_type, number, mode, overrides or {})
            environment = ENVIRONMENTS.get(config.environment).from_config(config)
            self._parts[number] = (config, environment, Transition(config.external, environment))
            self.sandbox: SandboxSettings = sandbox_settings(config)
        for joint in joints:
            _, environment, _ = self._parts[len(joint.completions)]
            environment.check_task(joint.task)

    async def each(
        self, joints: Sequence[JointResponse], executor: Executor, at_once: int
    ) -> AsyncIterator[dict[str, Any]]:
        """A line of numbers for each, in their order; `at_once` of them are in work at most."""
        players = {number: EpisodeRunner(*parts, (), executor) for number, parts in self._parts.items()}
        waiting: deque[asyncio.Task[dict[str, Any]]] = deque()
        rest = iter(joints)
        try:
            while True:
                while len(waiting) < at_once and (joint := next(rest, None)) is not None:
                    waiting.append(asyncio.ensure_future(self.score(joint, players[len(joint.completions)])))
                if not waiting:
                    return
                yield await waiting[0]
                waiting.popleft()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def score(self, joint: JointResponse, player: EpisodeRunner) -> dict[str, Any]:
        """One joint action as plain data: task_id, turn where it was given, reward, each agent's own in `rewards` where
        the environment gives such, levels, metrics, what the environment keeps of the verdict (`report` where code was
        run), and the next `prompts`. Where the machinery gave no verdict: task_id, turn and `failure`."""
        environment = player.environment
        named: dict[str, Any] = {"task_id": joint.task.id} | ({"turn": joint.turn} if joint.turn else {})
        attempt = environment.attempt(joint.task, joint.completions, last=self.mode is None)
        (outcome,) = await player.outcomes([attempt])
        if outcome.failure:
            return named | {"failure": outcome.failure}
        scored = named | {"reward": outcome.reward}
        if outcome.rewards:
            scored["rewards"] = list(outcome.rewards)
        scored |= {"levels": dict(outcome.levels), "metrics": dict(outcome.metrics)}
        if outcome.evidence is not None:
            scored |= outcome.evidence.data()
        if self.mode is not None:
            first = environment.first_prompts(joint.task)
            check_texts(qualified_method_name(environment, "first_prompts"), first, environment.num_agents)
            observations = await player.transition.next_prompts(joint.task, first, attempt, outcome)
            scored["prompts"] = observations.prompts
        return scored


def _config(dataset_type: str, num_agents: int, mode: str | None, overrides: Mapping[str, Any]) -> Config:
    """A run's settings, as far as environments, modes and the sandbox read them. Raises UserError."""
    tree = {
        "model": {"name": "none"},  # a config has one, and nobody is asked
        "dataset": {"name": "given", "type": dataset_type},
        "external": {"mode": mode or "plain"},
        "magrpo": {"num_agents": num_agents, "num_turns": 2},
    }
    return from_tree(tree, "magrpo", overrides)
