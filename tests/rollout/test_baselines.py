"""Greedy joint samples and counterfactuals as they are played: scripted agents, real environment and sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from marl_ray.core.episode import Completion, Episode, Generation, Node, SamplingSpec
from marl_ray.credit.groups import build_agent_batch
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.external.transition import Transition
from marl_ray.rollout.episode_runner import EpisodeRunner
from marl_ray.sandbox import ExecutionReport, Program, Sandbox, failed_report
from marl_ray.telemetry.episode_records import episode_record
from marl_ray.telemetry.metrics import episode_metrics, joint_samples, rollout_metrics
from tests.rollout.test_episode_runner import AUX, BROKEN, GOOD, TASK, WRONG, config


class Sampled:
    """An agent's generators: scripted samples, and another answer for who asks greedily."""

    def __init__(self, greedy: str, *texts: str) -> None:
        self.greedy, self.texts = greedy, texts
        self.asked: list[SamplingSpec] = []

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        self.asked.append(sampling)
        texts = (self.greedy,) if sampling.temperature == 0 else self.texts
        return Generation((1, 2), tuple(Completion((7,), text, (-0.5,), "stop", ((0, 1),)) for text in texts))


class Counted:
    """The sandbox without the pool, which remembers what it was asked."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.batches = sandbox, list[int]()

    async def execute(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        self.batches.append(len(programs))
        return self.sandbox.run_batch(list(programs))


class FailsLater:
    """A sandbox that is lost after a node's joint actions were executed."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.calls = sandbox, 0

    async def execute(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        self.calls += 1
        if self.calls == 1:
            return self.sandbox.run_batch(list(programs))
        return [failed_report(program, "", infra_error="gone") for program in programs]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as ready:
        yield ready


def play(executor: object, agents: Sequence[Sampled], *, evaluation: bool = False, **settings: object) -> Episode:
    run = config(**({"num_turns": 1} | settings))
    environment = CodeGeneration.from_config(run)
    runner = EpisodeRunner(run, environment, Transition(run.external, environment), agents, executor)  # type: ignore[arg-type]
    return asyncio.run(runner.run_episode(TASK, run.rollout.num_generations, "train", 0, evaluation=evaluation))


def root(episode: Episode) -> Node:
    assert episode.root is not None
    return episode.root


def test_remax_asks_every_agent_for_its_most_likely_answer(sandbox: Sandbox) -> None:
    agents = [Sampled(AUX, AUX, AUX, AUX), Sampled(WRONG, BROKEN, WRONG, GOOD)]
    episode = play(Counted(sandbox), agents, estimator="remax")
    greedy = root(episode).greedy
    assert greedy is not None
    assert [c.text for c in greedy.completions] == [AUX, WRONG]
    assert greedy.reward == pytest.approx(3.5)
    for agent in agents:
        assert [(a.num_generations, a.temperature, a.top_p, a.top_k) for a in agent.asked] == [
            (3, 0.8, 1.0, None),
            (1, 0.0, 1.0, None),
        ]
    (group,) = build_agent_batch([episode], 1, 0, config(num_turns=1, estimator="remax")).mini_batches[0].groups
    assert group.weights == pytest.approx(((0.4 - 3.5) / 3, 0.0, 0.5 / 3))
    assert [c.text for c in group.completions] == [BROKEN, WRONG, GOOD], "nobody learns from the greedy answer"
    assert joint_samples([episode]) == 4, "what was sampled is counted"
    assert rollout_metrics([episode], 1.0)["rollout/tokens"] == 8
    assert episode_metrics([episode], 1.0, 1)["turn_1/greedy_reward_mean"] == pytest.approx(3.5)
    assert episode_record(episode)["nodes"][0]["greedy"]["responses"] == [AUX, WRONG]


def test_difference_takes_the_agents_answer_away(sandbox: Sandbox) -> None:
    """Without the helper main fails both tests, unless it does without; without main there is the helper alone."""
    executor = Counted(sandbox)
    alone = "def add_twice(a, b):\n    return a + 2 * b\n"
    agents = [Sampled("", AUX, AUX, AUX), Sampled("", GOOD, alone, BROKEN)]
    node = root(play(executor, agents, estimator="difference"))
    rewards = [action.reward for action in node.joint_actions]
    assert rewards == pytest.approx([4.0, 2.5, 0.4])
    # Main alone: 0.6 + 0.5 + the share of tests passed; GOOD calls what is not there.
    assert node.counterfactuals[0] == pytest.approx([1.1, 2.1, 0.0])
    assert node.counterfactuals[1] == pytest.approx([0.4, 0.4, 0.4])
    assert all(len(agent.asked) == 1 for agent in agents), "it costs nothing but executions"
    assert executor.batches == [3, 4], "equal ones are asked for once, and all together"
    metrics = episode_metrics([Episode(TASK, node)], 1.0, 1)
    assert metrics["agent_0/turn_1/difference_mean"] == pytest.approx((2.9 + 0.4 + 0.4) / 3)


def test_the_median_answer_stands_in(sandbox: Sandbox) -> None:
    agents = [Sampled("", AUX, AUX, "def aux(b):\n    return b\n"), Sampled("", GOOD, WRONG, GOOD)]
    node = root(play(Counted(sandbox), agents, estimator="difference", counterfactual="median"))
    rewards = [action.reward for action in node.joint_actions]
    assert rewards == pytest.approx([4.0, 3.5, 3.5])  # each passes one test at least
    assert node.counterfactuals[0] == pytest.approx([4.0, 3.5, 4.0]), "the second's helper, for whoever has another"
    assert node.counterfactuals[1] == pytest.approx([3.5, 3.5, 3.5])


def test_in_cross_every_counterfactual_was_played(sandbox: Sandbox) -> None:
    agents = [Sampled("", AUX, "def aux(b):\n    return b\n"), Sampled("", GOOD, WRONG)]
    run = {"estimator": "difference", "counterfactual": "median", "joint_mode": "cross", "num_generations": 2}
    node = root(play(Counted(sandbox), agents, **run))
    played = {action.indices: action.reward for action in node.joint_actions}
    stand_in = [c for c in (0, 1) if node.counterfactuals[0] == [played[c, j] for i in (0, 1) for j in (0, 1)]]
    assert stand_in, "one of its own answers, beside each of the other's"


def test_one_agent_alone_may_ask_for_it(sandbox: Sandbox) -> None:
    agents = [Sampled("", AUX, AUX, AUX), Sampled("", GOOD, GOOD, GOOD)]
    own = {"agents": [{"name": "m"}, {"name": "m", "estimator": "difference"}]}
    run = config(own, num_turns=1)  # type: ignore[arg-type]
    environment = CodeGeneration.from_config(run)
    runner = EpisodeRunner(run, environment, Transition(run.external, environment), agents, Counted(sandbox))
    node = root(asyncio.run(runner.run_episode(TASK, 3, "train", 0)))
    assert list(node.counterfactuals) == [1]
    assert node.greedy is None


def test_evaluations_do_without(sandbox: Sandbox) -> None:
    executor = Counted(sandbox)
    agents = [Sampled("", AUX, AUX, AUX), Sampled("", GOOD, GOOD, GOOD)]
    for estimator in ("remax", "difference"):
        node = root(play(executor, agents, evaluation=True, estimator=estimator))
        assert (node.greedy, node.counterfactuals) == (None, {})
    assert executor.batches == [3, 3]


@pytest.mark.parametrize("estimator", ["remax", "difference"])
def test_a_node_whose_baseline_has_no_verdict_is_lost(sandbox: Sandbox, estimator: str) -> None:
    agents = [Sampled("", AUX, AUX, AUX), Sampled("", GOOD, GOOD, GOOD)]
    episode = play(FailsLater(sandbox), agents, estimator=estimator)
    assert (episode.root, [stop.reason for stop in episode.stops]) == (None, ["infra_error"])
