"""The latency term: the cost of a turn's longest answer, from the rollout to returns, records and metrics.

Environment and generators are small and run no code; the player, credit, records and metrics are real.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from marl_ray.core.episode import Episode, Generation, SamplingSpec, Task
from marl_ray.credit.groups import build_critic_sample
from marl_ray.credit.returns import action_returns
from marl_ray.rollout.turn_player import TurnPlayer
from marl_ray.telemetry.episode_records import episode_record
from marl_ray.telemetry.metrics import episode_metrics
from tests.credit.trees import node
from tests.credit.whole_batches import build_agent_batch
from tests.environments.talk import Talk
from tests.factories import make_completion, make_config
from tests.rollout.helpers import NoExecutor

LENGTHS = ((3, 9), (5, 2))
"""Tokens of the answers of two agents, by sibling."""


class Speakers(Talk):
    """Speakers that answer in given rounds."""

    def __init__(self, rounds: list[list[int]]) -> None:
        super().__init__(2)
        self.rounds = rounds

    def order(self, task: Task) -> list[list[int]]:
        return self.rounds

    def prompt_after(self, task: Task, agent: int, prompt: str, answers: Any) -> str:
        return "And?"


class Speaker:
    """A generator of answers of given lengths."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths = lengths

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        lengths = self.lengths[: sampling.num_generations]
        return Generation((1,), tuple(make_completion("x", length) for length in lengths))


def played(coefficient: float, rounds: list[list[int]]) -> tuple[Episode, Any]:
    settings: dict[str, Any] = {"num_agents": 2, "num_turns": 1, "num_generations": 2, "latency_coef": coefficient}
    config = make_config(sections={"external": {"mode": "passed"}}, **settings)
    player = TurnPlayer(config, Speakers(rounds), [Speaker(lengths) for lengths in LENGTHS], NoExecutor())
    return asyncio.run(player.run_episode(Task("t", "Go.", {}), 2, "train", 0)), config


def test_agents_that_answer_at_the_same_time_pay_for_the_longest_answer() -> None:
    episode, config = played(0.01, [[0, 1]])
    root = episode.root
    assert root is not None
    assert [action.latency for action in root.joint_actions] == pytest.approx([0.05, 0.09])
    # Rewards do not contain the term.
    free, _ = played(0.0, [[0, 1]])
    assert free.root is not None
    assert [action.rewards for action in root.joint_actions] == [action.rewards for action in free.root.joint_actions]
    for agent in (0, 1):
        (group,) = build_agent_batch([episode], agent, 0, config).mini_batches[0].groups
        rewards = root.rewards_of(agent)
        assert group.returns == pytest.approx((rewards[0] - 0.05, rewards[1] - 0.09))
    assert [action["latency"] for action in episode_record(episode)["nodes"][0]["joint_actions"]] == [-0.05, -0.09]
    assert episode_metrics([episode], 1.0, 1)["turn_1/latency"] == pytest.approx(-0.07)


def test_a_critic_learns_from_the_same_returns() -> None:
    config = make_config(num_agents=1, num_turns=1, num_generations=2, critic="iac")
    sample = build_critic_sample(timed(0, [4.0, 1.0], [0.5, 0.25]), 0, config.agents[0], config.training, 64)
    assert sample.rewards == (3.5, 0.75)


def test_answers_in_an_order_follow_each_other() -> None:
    episode, _ = played(0.01, [[0], [1]])
    assert episode.root is not None
    # The followed answer has both continuations, its sibling one.
    assert [action.latency for action in episode.root.joint_actions] == pytest.approx([0.08, 0.05, 0.14])


def test_without_a_coefficient_nothing_changes() -> None:
    episode, _ = played(0.0, [[0, 1]])
    assert episode.root is not None
    assert "latency" not in episode_record(episode)["nodes"][0]["joint_actions"][0]
    assert "turn_1/latency" not in episode_metrics([episode], 1.0, 1)
    assert action_returns(episode.root, 0, 1.0, False) == episode.root.rewards_of(0)


def test_each_turn_pays_once_and_a_stopped_branch_pays_for_no_further_turn() -> None:
    root = timed(0, [4.0, 1.0], [0.5, 0.25])
    root.stopped = {0: 1}
    root.children = {1: timed(1, [3.0, 2.0], [1.0, 0.0])}
    # The first branch keeps its reward of 4 in the turn that is left; the second goes on: (3 - 1 + 2 - 0) / 2.
    assert action_returns(root, 0, 1.0, full_tree=True) == [4.0 + 4.0 - 0.5, 1.0 - 0.25 + 2.0]


def timed(turn: int, rewards: list[float], latencies: list[float]) -> Any:
    root = node(turn, len(rewards), 1, "aligned", [[reward] for reward in rewards])
    for action, latency in zip(root.joint_actions, latencies, strict=True):
        object.__setattr__(action, "latency", latency)
    return root
