"""Greedy joint samples and counterfactual actions, with scripted generators and real environment and sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from marl_ray.core.episode import Completion, Episode, Generation, Node, SamplingSpec
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.rollout.turn_player import TurnPlayer
from marl_ray.sandbox import Sandbox
from marl_ray.telemetry.episode_records import episode_record
from marl_ray.telemetry.metrics import episode_metrics, joint_samples, rollout_metrics
from tests.credit.whole_batches import build_agent_batch
from tests.rollout.helpers import AUX, BROKEN, GOOD, TASK, WRONG, DirectExecutor, FailingExecutor, rollout_config


class Scripted:
    """A generator of scripted samples, and of another text at temperature 0."""

    def __init__(self, greedy: str, *texts: str) -> None:
        self.greedy, self.texts = greedy, texts
        self.requests: list[SamplingSpec] = []

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        self.requests.append(sampling)
        texts = (self.greedy,) if sampling.temperature == 0 else self.texts
        return Generation((1, 2), tuple(Completion((7,), text, (-0.5,), "stop", ((0, 1),)) for text in texts))


def run_episode(
    executor: object, agents: Sequence[Scripted], *, evaluation: bool = False, **settings: object
) -> Episode:
    run = rollout_config(**({"num_turns": 1} | settings))
    environment = CodeGeneration.from_config(run)
    runner = TurnPlayer(run, environment, agents, executor)  # type: ignore[arg-type]
    return asyncio.run(runner.run_episode(TASK, run.training.num_generations, "train", 0, evaluation=evaluation))


def root(episode: Episode) -> Node:
    assert episode.root is not None
    return episode.root


def test_remax_samples_a_greedy_completion_per_agent(sandbox: Sandbox) -> None:
    agents = [Scripted(AUX, AUX, AUX, AUX), Scripted(WRONG, BROKEN, WRONG, GOOD)]
    episode = run_episode(DirectExecutor(sandbox), agents, estimator="remax")
    greedy = root(episode).greedy
    assert greedy is not None
    assert [c.text for c in greedy.completions] == [AUX, WRONG]
    assert greedy.reward == pytest.approx(3.5)
    for agent in agents:
        assert [(a.num_generations, a.temperature, a.top_p, a.top_k) for a in agent.requests] == [
            (3, 0.8, 1.0, None),
            (1, 0.0, 1.0, None),
        ]
    (group,) = build_agent_batch([episode], 1, 0, rollout_config(num_turns=1, estimator="remax")).mini_batches[0].groups
    assert group.weights == pytest.approx(((0.4 - 3.5) / 3, 0.0, 0.5 / 3))
    assert [c.text for c in group.completions] == [BROKEN, WRONG, GOOD], "the greedy completion is not learned from"
    assert joint_samples([episode]) == 4, "the greedy joint sample counts"
    assert rollout_metrics([episode], 1.0)["rollout/tokens"] == 8
    assert episode_metrics([episode], 1.0, 1)["turn_1/greedy_reward_mean"] == pytest.approx(3.5)
    assert episode_record(episode)["nodes"][0]["greedy"]["responses"] == [AUX, WRONG]


def test_difference_replaces_the_agents_completion_by_an_empty_one(sandbox: Sandbox) -> None:
    # Without the helper, main fails both tests unless it does not call the helper; without main only the helper is
    # left.
    executor = DirectExecutor(sandbox)
    alone = "def add_twice(a, b):\n    return a + 2 * b\n"
    agents = [Scripted("", AUX, AUX, AUX), Scripted("", GOOD, alone, BROKEN)]
    node = root(run_episode(executor, agents, estimator="difference"))
    rewards = [action.reward for action in node.joint_actions]
    assert rewards == pytest.approx([4.0, 2.5, 0.4])
    # Main alone: 0.6 + 0.5 + the share of passed tests; GOOD calls a missing function.
    assert node.counterfactuals[0] == pytest.approx([1.1, 2.1, 0.0])
    assert node.counterfactuals[1] == pytest.approx([0.4, 0.4, 0.4])
    assert all(len(agent.requests) == 1 for agent in agents), "counterfactual actions are not sampled"
    assert executor.batches == [3, 4], "equal programs are executed once, in one batch"
    metrics = episode_metrics([Episode(TASK, node)], 1.0, 1)
    assert metrics["agent_0/turn_1/difference_mean"] == pytest.approx((2.9 + 0.4 + 0.4) / 3)


def test_the_median_completion_is_the_counterfactual_action(sandbox: Sandbox) -> None:
    agents = [Scripted("", AUX, AUX, "def aux(b):\n    return b\n"), Scripted("", GOOD, WRONG, GOOD)]
    node = root(run_episode(DirectExecutor(sandbox), agents, estimator="difference", counterfactual="median"))
    rewards = [action.reward for action in node.joint_actions]
    assert rewards == pytest.approx([4.0, 3.5, 3.5])  # each passes one test at least
    assert node.counterfactuals[0] == pytest.approx([4.0, 3.5, 4.0]), (
        "the helper of the median completion replaces others"
    )
    assert node.counterfactuals[1] == pytest.approx([3.5, 3.5, 3.5])


def test_in_cross_every_counterfactual_was_sampled(sandbox: Sandbox) -> None:
    agents = [Scripted("", AUX, "def aux(b):\n    return b\n"), Scripted("", GOOD, WRONG)]
    run = {"estimator": "difference", "counterfactual": "median", "joint_mode": "cross", "num_generations": 2}
    node = root(run_episode(DirectExecutor(sandbox), agents, **run))
    played = {action.indices: action.reward for action in node.joint_actions}
    stand_in = [c for c in (0, 1) if node.counterfactuals[0] == [played[c, j] for i in (0, 1) for j in (0, 1)]]
    assert stand_in, "one of its own answers, beside each of the other's"


def test_one_agent_may_use_counterfactuals(sandbox: Sandbox) -> None:
    agents = [Scripted("", AUX, AUX, AUX), Scripted("", GOOD, GOOD, GOOD)]
    own = {"agents": [{"name": "m"}, {"name": "m", "estimator": "difference"}]}
    run = rollout_config(own, num_turns=1)  # type: ignore[arg-type]
    environment = CodeGeneration.from_config(run)
    runner = TurnPlayer(run, environment, agents, DirectExecutor(sandbox))
    node = root(asyncio.run(runner.run_episode(TASK, 3, "train", 0)))
    assert list(node.counterfactuals) == [1]
    assert node.greedy is None


def test_evaluations_have_no_baselines(sandbox: Sandbox) -> None:
    executor = DirectExecutor(sandbox)
    agents = [Scripted("", AUX, AUX, AUX), Scripted("", GOOD, GOOD, GOOD)]
    for estimator in ("remax", "difference"):
        node = root(run_episode(executor, agents, evaluation=True, estimator=estimator))
        assert (node.greedy, node.counterfactuals) == (None, {})
    assert executor.batches == [3, 3]


@pytest.mark.parametrize("estimator", ["remax", "difference"])
def test_a_node_without_a_verdict_on_its_baseline_is_lost(sandbox: Sandbox, estimator: str) -> None:
    agents = [Scripted("", AUX, AUX, AUX), Scripted("", GOOD, GOOD, GOOD)]
    episode = run_episode(FailingExecutor(sandbox, batches=1), agents, estimator=estimator)
    assert (episode.root, [stop.reason for stop in episode.stops]) == (None, ["infra_error"])
