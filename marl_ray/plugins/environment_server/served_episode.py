"""An episode whose answers come from outside: `reset` and `step` in place of engines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from marl_ray.config import Config, ExternalConfig
from marl_ray.core.chat import Prompt
from marl_ray.core.episode import Completion, Episode, Generation, Node, SamplingSpec, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.base import BaseEnvironment, Environment, Executor
from marl_ray.environments.program_environment import ProgramEnvironment
from marl_ray.rollout.turn_player import TurnPlayer


class EpisodeError(Exception):
    """A step that the episode does not permit, or an episode without a verdict; the message says why."""


@dataclass(frozen=True, slots=True)
class AgentQuestion:
    """An agent's prompt, and the future answer."""

    agent: int
    prompt: Prompt
    answer: asyncio.Future[str]


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of a step: the next agent with its prompt, or the end of the episode (`done`), and the reward of a
    turn that is now complete, jointly and per agent."""

    agent: int | None
    role: str | None
    prompt: Prompt | None
    reward: float | None
    rewards: tuple[float, ...]
    metrics: dict[str, float]
    done: bool


class AskedAgent:
    """One agent's generators, which ask for the answer and sample nothing."""

    def __init__(self, agent: int, questions: asyncio.Queue[AgentQuestion]) -> None:
        self._agent = agent
        self._questions = questions

    async def generate(
        self, prompt: Prompt, sampling: SamplingSpec, priority: int = 0, history: tuple[int, ...] = ()
    ) -> Generation:
        question = AgentQuestion(self._agent, prompt, asyncio.get_running_loop().create_future())
        self._questions.put_nowait(question)
        text = await question.answer
        # Nothing is trained, so that an answer needs no tokens.
        return Generation((), (Completion((), text, (), "stop", ()),))


@dataclass(slots=True)
class ServedEpisode:
    """One episode: `begin` returns the first prompt, and every `step` takes the answer to the last prompt. Agents that
    act at the same time are asked one after the other, in their order. For use from a single event loop."""

    config: Config
    environment: Environment[Any]
    task: Task
    executor: Executor
    steps: int = 0
    _questions: asyncio.Queue[AgentQuestion] = field(default_factory=asyncio.Queue)
    _nodes: list[Node] = field(default_factory=list)
    """Complete turns whose rewards no step has returned."""
    _current: AgentQuestion | None = None
    _playing: asyncio.Task[Episode] | None = None

    async def begin(self) -> Observation:
        """Start the episode."""
        agents = [AskedAgent(agent, self._questions) for agent in range(self.config.num_agents)]
        player = TurnPlayer(self.config, self.environment, agents, self.executor)
        playing = player.run_episode(self.task, 1, "served", evaluation=True, on_node=self._nodes.append)
        self._playing = asyncio.get_running_loop().create_task(playing)
        return await self._next()

    async def step(self, text: str) -> Observation:
        """Answer the last prompt. Raises EpisodeError."""
        if self._current is None:
            raise EpisodeError("the episode is over: reset starts another one")
        self.steps += 1
        self._current.answer.set_result(text)
        # A step that arrives before the next question is refused.
        self._current = None
        return await self._next()

    async def close(self) -> None:
        """End the episode."""
        if self._playing is not None:
            self._playing.cancel()
            await asyncio.wait({self._playing})

    async def _next(self) -> Observation:
        """Return the next prompt or the end, with the rewards of turns that are complete by now."""
        assert self._playing is not None
        asked = asyncio.ensure_future(self._questions.get())
        try:
            await asyncio.wait({asked, self._playing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not asked.done():
                asked.cancel()
        if asked.done() and not asked.cancelled():
            self._current = asked.result()
        else:
            for stop in self._playing.result().stops:
                if stop.reason in ("infra_error", "unscored"):
                    raise EpisodeError(f"the episode has no verdict: {stop.detail}")
        return self._observation()

    def _observation(self) -> Observation:
        asked = self._current
        agent = None
        role = None
        prompt = None
        if asked is not None:
            agent = asked.agent
            role = self.environment.roles(self.task)[agent]
            prompt = asked.prompt
        reward = None
        rewards: tuple[float, ...] = ()
        metrics: dict[str, float] = {}
        for node in self._nodes:  # one, unless a turn asked no agent
            (action,) = node.joint_actions
            reward = action.reward
            rewards = action.rewards
            metrics = {name: float(value) for name, value in action.outcome.metrics.items()}
        self._nodes.clear()
        return Observation(agent, role, prompt, reward, rewards, metrics, asked is None)


def check_served(environment: BaseEnvironment, name: str, external: ExternalConfig, tasks: Sequence[Task]) -> None:
    """Raise UserError for an environment or setting whose episodes need engines."""
    if isinstance(environment, ProgramEnvironment):
        raise UserError(f"environment {name} needs engines: serve an environment of prompts and answers")
    if external.composition == "chat":
        raise UserError("external.composition chat needs the engines' tokens: set it to prompt")
    if not tasks:
        raise UserError("the split has no tasks: give another --split")
    for task in tasks:
        environment.check_task(task)
