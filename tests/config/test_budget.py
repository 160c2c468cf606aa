"""The training budget of chains and trees."""

from __future__ import annotations

import pytest

from marl_ray.config import from_tree
from marl_ray.config.budget import training_budget
from marl_ray.config.budget_text import describe_budget


@pytest.mark.parametrize(
    ("settings", "groups", "samples"),
    [
        ({}, 2 * 2, 2 * (2 + 2)),
        ({"joint_mode": "cross"}, 2 * 2, 2 * (4 + 4)),
        ({"handoff": "all"}, 2 * (1 + 2), 2 * (2 + 4)),
        ({"joint_mode": "cross", "handoff": "all"}, 2 * (1 + 4), 2 * (4 + 16)),
        ({"joint_mode": "cross", "handoff": "all", "num_turns": 1}, 2, 2 * 4),
        ({"joint_mode": "cross", "handoff": "best", "num_agents": 3}, 2 * 2, 2 * (8 + 8)),
        ({"handoff": "all", "num_turns": 3}, 2 * (1 + 2 + 4), 2 * (2 + 4 + 8)),
    ],
)
def test_groups_and_joint_samples_of_a_tree(settings: dict, groups: int, samples: int) -> None:
    section = {"num_turns": 2, "num_generations": 2, "rollout_buffer_size": 2, **settings}
    config = from_tree({"model": {"name": "m"}, "dataset": {"name": "toy"}, "magrpo": section}, "magrpo")
    known = training_budget(config, 10)
    assert (known.groups_per_step, known.joint_samples_per_step) == (groups, samples)
    assert f"{groups} groups per agent" in describe_budget(config, None)
    assert f"= {samples} joint samples (" in describe_budget(config, 10)


def test_a_step_is_described_in_words() -> None:
    given = {"model": {"name": "m"}, "dataset": {"name": "toy"}, "magrpo": {"num_turns": 2, "train_batch_size": 4}}
    lines = describe_budget(from_tree(given, "magrpo"), 20).splitlines()
    assert lines == [
        "one step: 8 tasks x 2 turns = 16 groups per agent; x 4 generations = 64 joint samples (2 completions each); "
        "4 optimizer steps per agent",
        "run: 20 tasks, 3 steps per epoch, 3 steps, at most 192 joint samples",
    ]
    given["magrpo"] |= {"joint_mode": "cross", "handoff": "all"}
    assert describe_budget(from_tree(given, "magrpo"), 20).startswith(
        "one step: 8 tasks x 17 nodes = 136 groups per agent; x 16 joint actions = 2176 joint samples"
    )


def test_samples_that_no_loss_uses_are_counted() -> None:
    # 24 more tasks at most, and a greedy joint sample at each of 2 nodes
    section = {"num_turns": 2, "dynamic_sampling": True, "estimator": "remax"}
    config = from_tree({"model": {"name": "m"}, "dataset": {"name": "toy"}, "magrpo": section}, "magrpo")
    known = training_budget(config, 20)
    assert (known.groups_per_step, known.joint_samples_per_step) == (16, (8 + 24) * 2 * (4 + 1))
    first, greedy, dynamic, run = describe_budget(config, 20).splitlines()
    assert "16 groups per agent; x 4 generations = 64 joint samples" in first
    assert greedy == "estimator remax: one more greedy joint sample per node, as baseline only"
    assert "samples up to 32 tasks and learns from the first 8 in which rewards differ" in dynamic
    assert run.endswith("3 steps, at most 960 joint samples")
