"""A program that plays a task as the rollout does gives the gradient of the rollout on the same samples."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from marl_ray.config import Config
from marl_ray.core.chat import Prompt, TokenPrompt
from marl_ray.core.episode import Completion, Episode, Generation, SamplingSpec, Task
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.learning.arguments import learner_arguments
from marl_ray.learning.gradient_accumulator import GradientAccumulator
from marl_ray.learning.learner import Learner
from marl_ray.learning.micro_batches import trainable_rows
from marl_ray.models.names import resolve_model
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.plugins.gateway.program_episode import ProgramEpisode
from marl_ray.rollout.turn_player import TurnPlayer
from marl_ray.sandbox import Sandbox
from tests.credit.whole_batches import build_agent_batch
from tests.factories import make_config
from tests.rollout.helpers import DirectExecutor

GROUP, TASKS = 4, 3
CODE = ("def aux(n):\n    return {} * n", "def convert(n: int) -> int:\n    return aux(n) + {}\n", "def (", "")


@dataclass
class RecordedAgent:
    """Gives the g-th of G texts per task, as a group to the rollout, and one by one to programs in their order."""

    agent: int
    groups: dict[tuple[int, ...], list[Completion]] = field(default_factory=dict)
    given: dict[tuple[int, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokenizer: Any = load_tokenizer(resolve_model("bundled:toy-hard-base"), make_config().model)
        self.rng = random.Random(self.agent)

    async def generate(
        self, prompt: Prompt | TokenPrompt, sampling: SamplingSpec, priority: int = 0, history: tuple[int, ...] = ()
    ) -> Generation:
        if isinstance(prompt, TokenPrompt):
            place = self.given.get(prompt.token_ids, 0)
            self.given[prompt.token_ids] = place + 1
            return Generation(prompt.token_ids, (self.groups[prompt.token_ids][place],))
        ids = tuple(self.tokenizer(prompt).input_ids)
        self.groups[ids] = [self.sample() for _ in range(sampling.num_generations)]
        return Generation(ids, tuple(self.groups[ids]))

    def sample(self) -> Completion:
        text = self.rng.choice(CODE).format(self.rng.randrange(2, 9))
        ids = (*self.tokenizer(text).input_ids, self.tokenizer.eos_token_id)
        return Completion(ids, text, tuple(-self.rng.random() for _ in ids), "stop", ((0, len(ids)),))


def toy_config(sections: dict[str, Any], aggregation: str) -> Config:
    """Return a config of the harder toy tasks with one turn."""
    base = {
        "model": {"name": "bundled:toy-hard-base", "max_length": 1024, "temperature": 1.0},
        "dataset": {"name": "bundled:toy-hard", "type": "toy"},
        "code_generation": {"helper_reward": "static"},
    }
    settings: dict[str, Any] = {"num_generations": GROUP, "max_new_tokens": 48, "loss_aggregation": aggregation}
    return make_config(sections=base | sections, **settings)


async def plays(episode: ProgramEpisode) -> dict[str, Any]:
    """Ask both agents with the prompts of the judge."""
    prompts = episode.task_data["prompts"]
    return {"answers": {name: await episode.ask(name, prompts[name]) for name in ("agent_0", "agent_1")}}


def gradient(config: Config, episodes: list[Episode], agent: int) -> torch.Tensor:
    """Return the gradient that the optimizer would get, as one vector."""
    learner = Learner(*learner_arguments(config, config.policy_of(agent), total_steps=1))
    (mini_batch,) = build_agent_batch(episodes, agent, 0, config).mini_batches
    accumulator = GradientAccumulator(learner.logprob_model, learner.settings)
    accumulator.add(trainable_rows(mini_batch.groups), len(mini_batch.groups))
    accumulator.close(mini_batch.normalizer)
    gradients = (p.grad.flatten() for p in learner.policy.parameters() if p.grad is not None)
    return torch.cat(list(gradients)).double()


async def episodes_of(runner: Any, tasks: list[Task]) -> list[Episode]:
    return [await runner.run_episode(task, GROUP, "train", 0) for task in tasks]


@pytest.mark.parametrize("aggregation", ["sequence_sum", "token_mean", "constant"])
def test_the_gradient_is_that_of_the_rollout(sandbox: Sandbox, aggregation: str) -> None:
    tasks = load_tasks("bundled:toy-hard", "train", "toy", "skip")[:TASKS]
    agents, executor = [RecordedAgent(0), RecordedAgent(1)], DirectExecutor(sandbox)
    settings = {
        "function": "tests.plugins.gateway.test_gradient_of_programs:plays",
        "reward": "judge",
        "concurrency": 1,
    }
    native = toy_config({}, aggregation)
    program = toy_config({"environment": "gateway", "gateway": settings | {"judge": "code_generation"}}, aggregation)
    environment = ENVIRONMENTS.get("code_generation").from_config(native)
    runner = TurnPlayer(native, environment, agents, executor)
    theirs = asyncio.run(episodes_of(runner, tasks))
    gateway = ENVIRONMENTS.get("gateway").from_config(program)

    async def play() -> list[Episode]:
        own = gateway.player(program, agents, executor)
        try:
            return await episodes_of(own, tasks)
        finally:
            await gateway.close()

    ours = asyncio.run(play())
    for one, other in zip(theirs, ours, strict=True):
        assert one.root is not None
        assert other.root is not None
        assert [a.reward for a in one.root.joint_actions] == [a.reward for a in other.root.joint_actions]
    for agent in (0, 1):
        first, second = gradient(native, theirs, agent), gradient(program, ours, agent)
        assert first.norm() > 0
        assert torch.cosine_similarity(first, second, dim=0) >= 0.999999
        assert second.norm() == pytest.approx(float(first.norm()), rel=1e-5)
