"""Estimators that look beyond siblings, against an independent NumPy computation and cases worked by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.config import Config, from_tree
from marl_ray.core.batch import Group
from marl_ray.core.episode import Episode, GreedySample, Node
from marl_ray.core.errors import UserError
from marl_ray.credit import ESTIMATORS
from marl_ray.credit.baselines import median_index
from marl_ray.credit.groups import build_agent_batch, build_group, weight_group
from marl_ray.trainer.batch_builder import BatchBuilder
from tests.credit.trees import completion, config, episode, grown, node

REWARDS = (0.0, 0.4, 1.1, 3.5, 4.0)
WEIGHTS = [1.5, 1.0, 0.25]


def with_baselines(root: Node, agents: int, rng: random.Random) -> Node:
    """The tree with a greedy joint sample and counterfactuals at every node, as if they had been played."""
    for _, one in episode(root).nodes():
        own = tuple(rng.choice(REWARDS) + agent for agent in range(agents))
        one.greedy = GreedySample((completion(1),) * agents, own[0], own)
        one.counterfactuals = {
            agent: [rng.choice(REWARDS) + agent for _ in one.joint_actions] for agent in range(agents)
        }
    return root


def oracle(episodes: list[Episode], agent: int, group: int, mode: str, run: Config) -> list[np.ndarray]:
    """The weights of every node's group, by turn, then by draw, from the definitions alone."""
    nodes = sorted((one for e in episodes for _, one in e.nodes()), key=lambda one: one.turn)

    def credited(one: Node, values: list[float]) -> np.ndarray:
        held = [
            [v for v, a in zip(values, one.joint_actions, strict=True) if a.indices[agent] == g] for g in range(group)
        ]
        return np.array([np.mean(of_one) for of_one in held])

    returns = [credited(one, [action.rewards[agent] for action in one.joint_actions]) for one in nodes]
    found = []
    for one, own in zip(nodes, returns, strict=True):
        estimator = run.agents[agent].estimator
        if estimator == "remax":
            assert one.greedy is not None
            advantage = own - one.greedy.rewards[agent]
        elif estimator == "difference":
            advantage = own - credited(one, one.counterfactuals[agent])
        else:
            turn = np.concatenate([r for other, r in zip(nodes, returns, strict=True) if other.turn == one.turn])
            advantage = (own - turn.mean()) / (turn.std() + 1e-6) if np.ptp(turn) else own * 0.0
        found.append(run.credit.turn_gradient_weights[one.turn] / group * advantage)
    return found


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    depth=st.integers(1, 3),
    agents=st.integers(1, 3),
    group=st.integers(1, 3),
    mode=st.sampled_from(["aligned", "cross"]),
    estimator=st.sampled_from(["remax", "difference", "reinforce_pp"]),
    size=st.sampled_from([None, 1, 2]),
)
def test_weights_are_the_oracles(
    seed: int, depth: int, agents: int, group: int, mode: str, estimator: str, size: int | None
) -> None:
    settings = {"joint_mode": mode, "estimator": estimator, "turn_gradient_weights": WEIGHTS[:depth]}
    run = config(agents, depth, group, train_batch_size=size, **settings)
    rng = random.Random(seed)
    trees = [with_baselines(grown(depth, group, agents, mode, "random", rng), agents, rng) for _ in range(3)]
    episodes = [episode(tree) for tree in trees]
    assembly = BatchBuilder(0, 3, run)
    for draw in (2, 0, 1):
        assembly.add_episode(draw, episodes[draw])
    for agent in range(agents):
        batch = build_agent_batch(episodes, agent, 0, run)
        assert assembly.batches[agent] == batch, "in whatever order they come"
        groups = [g for part in batch.mini_batches for g in part.groups]
        groups.sort(key=lambda g: g.turn)  # mini-batches are cut by draw
        for got, expected in zip(groups, oracle(episodes, agent, group, mode, run), strict=True):
            np.testing.assert_allclose(got.weights, expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(
    returns=st.lists(st.sampled_from(REWARDS), min_size=2, max_size=6),
    baseline=st.sampled_from(REWARDS),
    shift=st.sampled_from([-4.0, 0.0, 2.5]),
    scale=st.sampled_from([0.5, 1.0, 4.0]),
)
def test_shift_and_scale(returns: list[float], baseline: float, shift: float, scale: float) -> None:
    """A shift of all rewards changes nothing; a scale is the advantage's own, or whitened away."""
    given = torch.tensor(returns, dtype=torch.float64)
    other = torch.full_like(given, baseline)
    for name in ("remax", "difference"):
        moved = ESTIMATORS.get(name)(scale * given + shift, scale * other + shift)
        torch.testing.assert_close(moved, scale * ESTIMATORS.get(name)(given, other))
    white = ESTIMATORS.get("reinforce_pp")
    torch.testing.assert_close(white(scale * given + shift), white(given), rtol=1e-4, atol=1e-5)


def test_by_hand() -> None:
    returns, baseline = torch.tensor([4.0, 1.0]), torch.tensor([3.0, 0.5])
    assert ESTIMATORS.get("remax")(returns, baseline[:1]).tolist() == [1.0, -2.0]
    assert ESTIMATORS.get("difference")(returns, baseline).tolist() == [1.0, 0.5]
    batch = torch.tensor([0.0, 0.0, 4.0, 4.0], dtype=torch.float64)  # mean 2, deviation 2
    assert ESTIMATORS.get("reinforce_pp")(batch).tolist() == pytest.approx([-1.0, -1.0, 1.0, 1.0], rel=1e-6)


@pytest.mark.parametrize(
    ("returns", "which"), [([3.0], 0), ([3.0, 1.0], 1), ([5.0, 1.0, 3.0], 2), ([1.0, 1.0, 1.0], 0), ([4, 1, 3, 2], 3)]
)
def test_the_median_is_a_sibling(returns: list[float], which: int) -> None:
    assert median_index(returns) == which


def test_what_the_agent_did_not_bring_about_has_no_gradient() -> None:
    """The joint reward differs among siblings only through the other agent: a baseline of all of it is exact."""
    one = node(0, 2, 2, "aligned", [[4.0, 4.0], [0.4, 0.4]])
    one.counterfactuals = {0: [4.0, 0.4], 1: [0.4, 0.4]}
    run = config(2, 1, 2, estimator="difference")
    assert build_group(one, 0, run).weights == (0.0, 0.0)
    assert build_group(one, 1, run).weights == (1.8, 0.0)


def test_cross_rounds_a_baseline_as_it_rounds_returns() -> None:
    """Three times 0.1 over 3 is not 0.1: equal rewards have no gradient all the same."""
    one = node(0, 3, 2, "cross", [[0.1, 0.1]] * 9)
    one.greedy = GreedySample((completion(1),) * 2, 0.1, (0.1, 0.1))
    assert build_group(one, 0, config(2, 1, 3, joint_mode="cross", estimator="remax")).weights == (0.0, 0.0, 0.0)


def test_a_whole_batch_is_compared_before_anything_is_handed_on() -> None:
    run = config(2, 1, 2, estimator="reinforce_pp")
    assembly = BatchBuilder(0, 2, run)
    rewards: list[list[list[float]]] = [[[0.0] * 2] * 2, [[4.0] * 2] * 2]
    found: list[int] = []
    for draw, of_draw in enumerate(rewards):
        assembly.add_episode(draw, episode(node(0, 2, 2, "aligned", of_draw)))
        found.append(len(assembly.groups[0]))
    assert found == [0, 2]
    hard, easy = assembly.groups[0]
    assert hard.weights == pytest.approx((-0.5, -0.5), rel=1e-6)
    assert easy.weights == pytest.approx((0.5, 0.5), rel=1e-6)


def test_agents_may_differ() -> None:
    """One learns from groups as they come, while the other waits for the batch."""
    tree = {
        "agents": [{"name": "m"}, {"name": "m", "estimator": "reinforce_pp"}],
        "dataset": {"name": "bundled:toy"},
        "magrpo": {"num_generations": 2},
    }
    assembly = BatchBuilder(0, 2, from_tree(tree, "magrpo"))
    assembly.add_node(0, node(0, 2, 2, "aligned", [[1.0] * 2, [0.0] * 2]))
    assert [len(groups) for groups in assembly.groups] == [1, 0]


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"estimator": "remax", "handoff": "all", "num_turns": 2}, "a joint action that is not played on"),
        ({"estimator": "difference", "handoff": "all", "num_turns": 2}, "a joint action that is not played on"),
        ({"estimator": "remax", "normalize_advantages": True}, "makes remax the same as magrpo"),
        ({"estimator": "reinforce_pp", "normalize_advantages": True}, "makes reinforce_pp the same as magrpo"),
        ({"estimator": "reinforce_pp", "reference_kl_coef": 0.1}, "set magrpo.reference_kl to k3_in_loss"),
        ({"counterfactual": "median"}, "is for estimator difference, which no agent has"),
        ({"estimator": "difference", "counterfactual": "median", "num_generations": 1}, "set it to 2 or more"),
    ],
)
def test_what_cannot_be_is_refused(section: dict[str, object], says: str) -> None:
    given = {"num_generations": 2} | section
    with pytest.raises(UserError, match=says):
        config(2, int(given.pop("num_turns", 1)), int(given.pop("num_generations")), **given)  # type: ignore[call-overload]


def test_groups_remember_their_baselines() -> None:
    """A learner that takes a KL term from the returns applies the estimator again."""
    one = node(0, 2, 1, "aligned", [[4.0], [1.0]])
    one.greedy = GreedySample((completion(1),), 3.0, (3.0,))
    run = config(1, 1, 2, estimator="remax")
    group = build_group(one, 0, run)
    assert group == Group(0, one.prompt_ids[0], tuple(one.completions[0]), (4.0, 1.0), (0.5, -1.0), (3.0, 3.0))
    assert weight_group(replace(group, returns=(3.5, 1.0)), run.agents[0], run.credit).weights == (0.25, -1.0)
