"""Batches of full trees against an independent NumPy computation: one to three turns, one to three agents."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.config import Config
from marl_ray.core.episode import Episode, Node
from marl_ray.credit.groups import has_learning_signal
from tests.credit.trees import episode, node, random_tree, tree_config
from tests.credit.whole_batches import build_agent_batch

# --- independent computation: arrays over joint indices, written from the definitions ---


def tensor(tree: Node, agent: int, group: int, agents: int, mode: str, handoff: str, discount: float) -> np.ndarray:
    """Return the returns of a node's joint actions: [G] if aligned, [G] * N in cross mode."""
    shape = (group,) if mode == "aligned" else (group,) * agents
    values = np.zeros(shape)
    for index, action in enumerate(tree.joint_actions):
        place = action.indices[:1] if mode == "aligned" else action.indices
        values[place] = action.rewards[agent]
        if handoff == "all" and tree.children:
            below = tensor(tree.children[index], agent, group, agents, mode, handoff, discount)
            values[place] += discount * below.mean()
    return values


def oracle(
    episodes: list[Episode], agent: int, group: int, agents: int, mode: str, handoff: str, run: Config
) -> list[np.ndarray]:
    """Return the weights of every node's group in the batch's order (see `marl_ray.credit.groups`)."""
    nodes = []

    def walk(tree: Node) -> None:
        nodes.append(tree)
        for index in sorted(tree.children):
            walk(tree.children[index])

    for one in episodes:
        assert one.root is not None
        walk(one.root)
    if run.training.train_batch_size is None and handoff != "all":
        nodes.sort(key=lambda node: node.turn)
    size = run.training.train_batch_size or len(nodes)
    found = []
    for start in range(0, len(nodes), size):
        part = nodes[start : start + size]
        tokens = sum(len(call.completion.token_ids) for n in part for call in n.calls[agent])
        for n in part:
            values = tensor(n, agent, group, agents, mode, handoff, run.training.discount)
            if mode == "cross":
                values = values.mean(axis=tuple(a for a in range(agents) if a != agent))
            estimator = run.agents[agent].estimator
            if estimator == "marloo":
                baseline = (values.sum() - values) / (group - 1)
            else:
                baseline = {"magrpo": values.mean(), "maremax": values.max(), "mareinforce": 0.0}[estimator]
            advantage = values - baseline
            if run.training.normalize_advantages:
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
            scale = {
                "sequence_sum": 1 / (group * len(part)),
                "token_mean": 1 / tokens,
                "constant": 1 / (group * len(part) * run.agents[agent].max_new_tokens),
            }[run.training.loss_aggregation]
            found.append(run.training.turn_gradient_weights[n.turn] * scale * advantage)
    return found


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    depth=st.integers(1, 3),
    agents=st.integers(1, 3),
    group=st.integers(2, 3),
    mode=st.sampled_from(["aligned", "cross"]),
    handoff=st.sampled_from(["random", "best", "all"]),
    estimator=st.sampled_from(["magrpo", "marloo", "maremax", "mareinforce"]),
    whiten=st.booleans(),
    aggregation=st.sampled_from(["sequence_sum", "token_mean", "constant"]),
    mini=st.sampled_from([None, 1, 4]),
    discount=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_weights_equal_the_numpy_computation(
    seed: int,
    depth: int,
    agents: int,
    group: int,
    mode: str,
    handoff: str,
    estimator: str,
    whiten: bool,
    aggregation: str,
    mini: int | None,
    discount: float,
) -> None:
    if mode == "cross" and handoff == "all" and group**agents > 9:
        depth = min(depth, 2)
    run = tree_config(
        agents,
        depth,
        group,
        joint_mode=mode,
        handoff=handoff,
        estimator=estimator,
        normalize_advantages=whiten and estimator in ("magrpo", "mareinforce"),
        loss_aggregation=aggregation,
        train_batch_size=mini,
        discount=discount,
        turn_gradient_weights=[1.5, 1.0, 0.25][:depth],
    )
    rng = random.Random(seed)
    episodes = [episode(random_tree(depth, group, agents, mode, handoff, rng)) for _ in range(2)]
    for agent in range(agents):
        batch = build_agent_batch(episodes, agent, 3, run)
        got = [(g, part.normalizer) for part in batch.mini_batches for g in part.groups]
        expected = oracle(episodes, agent, group, agents, mode, handoff, run)
        assert batch.step == 3
        assert len(got) == len(expected)
        for (one, normalizer), weights in zip(got, expected, strict=True):
            # Whitening divides rounding errors by as little as 1e-6.
            np.testing.assert_allclose(np.array(one.weights) / normalizer, weights, rtol=1e-9, atol=1e-9)
            assert len(one.completions) == group, "each completion occurs once"


def test_hand_computed_weights_in_cross_mode() -> None:
    # G = 2, two agents, rewards 0, 4, 1, 1: returns are 2 and 1 for agent 0, 0.5 and 2.5 for agent 1.
    run = tree_config(2, 1, 2, joint_mode="cross")
    one = episode(node(0, 2, 2, "cross", [[r, r] for r in (0.0, 4.0, 1.0, 1.0)]))
    weights = [build_agent_batch([one], agent, 0, run).mini_batches[0].groups[0].weights for agent in (0, 1)]
    assert weights == [(0.25, -0.25), (-0.5, 0.5)]


def test_agents_with_individual_rewards_are_ranked_by_them() -> None:
    run = tree_config(2, 1, 2)
    one = episode(node(0, 2, 2, "aligned", [[1.0, 5.0], [3.0, 1.0]]))
    weights = [build_agent_batch([one], agent, 0, run).mini_batches[0].groups[0].weights for agent in (0, 1)]
    assert weights == [(-0.5, 0.5), (1.0, -1.0)]


@pytest.mark.parametrize("size", [None, 2])
def test_a_batch_without_episodes_is_empty(size: int | None) -> None:
    assert build_agent_batch([], 0, 0, tree_config(2, 1, 2, train_batch_size=size)).mini_batches == ()


@pytest.mark.parametrize(
    ("first", "second", "informative"),
    [
        ([[1.0, 1.0], [1.0, 1.0]], [[4.0, 4.0], [4.0, 4.0]], False),
        ([[1.0, 1.0], [0.0, 0.0]], [[4.0, 4.0], [4.0, 4.0]], True),
        ([[1.0, 1.0], [1.0, 1.0]], [[4.0, 4.0], [0.0, 0.0]], True),
        ([[1.0, 1.0], [1.0, 2.0]], [[4.0, 4.0], [4.0, 4.0]], True),
    ],
)
def test_learning_signal(first: list[list[float]], second: list[list[float]], informative: bool) -> None:
    # One agent and one turn with different returns are enough; a failed episode has no signal.
    run = tree_config(2, 2, 2)
    root = node(0, 2, 2, "aligned", first)
    root.children = {1: node(1, 2, 2, "aligned", second)}
    assert has_learning_signal(episode(root), run) is informative
    assert not has_learning_signal(Episode(episode(root).task), run)


def test_agents_that_are_not_trained_have_no_learning_signal() -> None:
    for frozen, informative in ((0, True), (1, False)):
        agents = tuple(
            replace(a, learning_rate=0.0) if i == frozen else a for i, a in enumerate(tree_config(2, 1, 2).agents)
        )
        run = replace(tree_config(2, 1, 2), agents=agents)
        only_of_1 = node(0, 2, 2, "aligned", [[1.0, 0.0], [1.0, 2.0]])
        assert has_learning_signal(episode(only_of_1), run) is informative
