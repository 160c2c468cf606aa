"""An environment of numbers that runs no code, generators that answer from their seed, and runs of both."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from marl_ray.config import Config
from marl_ray.core.episode import Completion, Episode, Generation, Outcome, SamplingSpec, Task
from marl_ray.environments.base import Environment
from marl_ray.rollout.turn_player import TurnPlayer
from marl_ray.trainer.batch_builder import BatchBuilder
from tests.credit.whole_batches import build_agent_batch
from tests.factories import make_config
from tests.rollout.helpers import NoExecutor

TASKS = [Task("a", "Count.", {}), Task("b", "Count on.", {})]


class Sum:
    """An attempt with the numbers of all agents."""

    program = None

    def __init__(self, responses: Sequence[str], last: bool) -> None:
        self.numbers = [int(text) for text in responses]
        self.last = last

    @property
    def answers(self) -> list[str]:
        return [str(number) for number in self.numbers]


class Counting(Environment[Sum]):
    """An environment of numbers. The reward is their sum; with `own` each agent is rewarded with its own number."""

    modes = ("level_feedback",)

    def __init__(self, agents: int, own: bool = False, fails_at_last: int | None = None) -> None:
        super().__init__(agents)
        self.agents, self.own, self.fails_at_last = agents, own, fails_at_last

    @classmethod
    def from_config(cls, config: Config) -> Counting:
        return cls(config.num_agents)

    def roles(self, task: Task) -> list[str]:
        return [f"counter {agent}" for agent in range(self.agents)]

    def first_prompts(self, task: Task) -> list[str]:
        return [f"{task.prompt} You are {role}." for role in self.roles(task)]

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Sum:
        return Sum(responses, last)

    def outcome(self, attempt: Sum, report: Any | None) -> Outcome:
        assert report is None
        if attempt.last and sum(attempt.numbers) == self.fails_at_last:
            return Outcome(0.0, failure="the abacus broke")
        own = tuple(map(float, attempt.numbers)) if self.own else ()
        return Outcome(float(sum(attempt.numbers)), rewards=own)

    def feedback(self, attempt: Sum, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return [f"sum: {outcome.reward:g}"]

    def revisions(self, task: Task) -> list[str]:
        return ["Say another number."] * self.agents


class Dice:
    """A generator of numbers that depend on the seed only."""

    def __init__(self, sides: int = 6) -> None:
        self.sides = sides
        self.requests: list[tuple[str, SamplingSpec]] = []

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        self.requests.append((prompt, sampling))
        await asyncio.sleep(0)
        rng = random.Random(sampling.seed)
        texts = [str(rng.randrange(self.sides)) for _ in range(sampling.num_generations)]
        return Generation((1,), tuple(Completion((2, 3), text, (-1.0, -1.0), "stop", ((0, 2),)) for text in texts))


def tree_config(agents: int = 2, **settings: Any) -> Config:
    return make_config(**({"num_agents": agents, "num_turns": 2, "num_generations": 2, "max_new_tokens": 8} | settings))


def run_batch(run: Config, environment: Environment, dice: Sequence[Dice] = ()) -> list[Episode]:
    agents = list(dice) or [Dice() for _ in range(run.num_agents)]
    runner = TurnPlayer(run, environment, agents, NoExecutor())
    builder = BatchBuilder(0, len(TASKS), run)
    episodes = asyncio.run(runner.run_batch(TASKS, 0, builder))
    assert builder.batches == [build_agent_batch(episodes, agent, 0, run) for agent in range(run.num_agents)]
    return episodes
