"""Episodes with frozen partners: prompts, credited rewards and weights. Generators return fixed texts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from marl_ray.core.episode import Generation, SamplingSpec
from marl_ray.credit.groups import build_group
from marl_ray.environments import ENVIRONMENTS
from marl_ray.rollout.turn_player import TurnPlayer
from marl_ray.telemetry.episode_records import episode_record
from marl_ray.telemetry.metrics import episode_metrics
from tests.environments.talk import TASK, Talk
from tests.factories import make_completion, make_config

TALK = f"{Talk.__module__}:Talk"


class Speaker:
    """A substitute for an agent's generators: its g-th completion is `word` g + 1 times."""

    def __init__(self, word: str) -> None:
        self.word, self.prompts = word, list[Any]()

    async def generate(self, prompt: Any, sampling: SamplingSpec, priority: int = 0) -> Generation:
        self.prompts.append(prompt)
        texts = [self.word * (number + 1) for number in range(sampling.num_generations)]
        return Generation((1,), tuple(map(make_completion, texts)))


class NoSandbox:
    """A substitute for the sandbox, which has nothing to execute."""

    async def execute(self, programs: Any) -> list[Any]:
        return [None for _ in programs]


def test_an_agent_learns_from_the_mean_over_partners() -> None:
    sections = {
        "environment": "frozen_partners",
        "partners": {"environment": TALK, "stand_in": [1], "weight": 0.5},
        "agents": ["m", "m", {"name": "old", "learning_rate": 0}],
        "external": {"mode": "passed"},
    }
    config = make_config(sections=sections, num_turns=2, num_generations=2)
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    speakers = [Speaker("a"), Speaker("bb"), Speaker("cccc")]
    runner = TurnPlayer(config, environment, speakers, NoSandbox())
    episode = asyncio.run(runner.run_episode(TASK, 2, "train", 0))
    root = episode.root
    assert root is not None
    assert [action.rewards for action in root.joint_actions] == [(4.0, 3.0, 0.0), (8.0, 6.0, 0.0)]
    groups = [build_group(root, agent, config) for agent in range(3)]
    assert [group.weights for group in groups] == [(-1.0, 1.0), (-0.75, 0.75), (0.0, 0.0)]
    metrics = episode_metrics([episode], 1.0, 2)
    assert (metrics["turn_1/reward_mean"], metrics["turn_1/partner_reward"]) == (4.5, 7.5)
    assert metrics["agent_0/turn_1/reward_mean"] == pytest.approx(6.0)
    assert episode_record(episode)["nodes"][0]["joint_actions"][0]["partner_rewards"] == [5.0]
    told = [speaker.prompts[1] for speaker in speakers]
    chosen = episode_record(episode)["nodes"][1]["path"][0] + 1
    assert all(f"{characters * chosen} characters" in text for characters, text in zip((3, 3, 5), told, strict=True))
