"""Metrics of hand-made trees, computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marl_ray.config import Config, from_tree
from marl_ray.core.batch import Batch, ClippingStats, CriticStats, Group, MiniBatch, UpdateStats
from marl_ray.core.episode import sibling_calls
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState
from marl_ray.credit.returns import expected_return
from marl_ray.telemetry.episode_records import episode_record, recorded_prompt
from marl_ray.telemetry.metrics import (
    episode_metrics,
    evaluation_row,
    joint_samples,
    rollout_metrics,
    rollout_row,
    step_row,
    update_metrics,
)
from marl_ray.weights.receiver import WeightSyncResult
from tests.factories import make_completion, make_config, make_episode, make_node


def config(**settings: float) -> Config:
    tree = {"model": {"name": "x"}, "dataset": {"name": "bundled:toy"}, "magrpo": {"num_turns": 2, **settings}}
    return from_tree(tree, "magrpo")


CHAIN = make_episode(make_node(0, [1.0, 3.0], {1: make_node(1, [4.0, 4.0])}))
"""Mean 2, then 4."""
TREE = make_episode(
    make_node(
        0,
        [0.0, 2.0],
        {0: make_node(1, [1.0, 3.0], {1: make_node(2, [5.0, 7.0])}), 1: make_node(1, [4.0, 4.0])},
    )
)
"""Means 1; 2 and 4; 6, below the first of the second turn."""


def test_metrics_of_a_chain() -> None:
    row = episode_metrics([CHAIN], discount=0.5, num_turns=2)
    assert row == {
        "turn_1/reward_mean": 2.0,
        "turn_1/reward_std": 1.0,
        "turn_1/reward_max_mean": 3.0,
        "turn_1/group_std_mean": 1.0,
        "turn_1/expected_return": 4.0,  # 2 + 0.5 * 4
        "turn_2/reward_mean": 4.0,
        "turn_2/reward_std": 0.0,
        "turn_2/reward_max_mean": 4.0,
        "turn_2/group_std_mean": 0.0,
        "turn_2/expected_return": 4.0,
        "turn_2/ended_early": 0.0,
    }


def test_metrics_of_a_turn_are_means_over_its_nodes() -> None:
    row = episode_metrics([TREE], discount=0.5, num_turns=3)
    assert row["turn_1/reward_mean"] == 1.0
    assert row["turn_2/reward_mean"] == 3.0
    assert row["turn_2/reward_max_mean"] == 3.5  # 3 and 4
    assert row["turn_2/group_std_mean"] == 0.5  # 1 and 0
    assert row["turn_3/reward_mean"] == 6.0
    # (2 + 0.5 * 6) = 5 and 4; the root 1 + 0.5 * 4.5
    assert row["turn_2/expected_return"] == 4.5
    assert row["turn_1/expected_return"] == 3.25


def test_expected_returns_of_a_node() -> None:
    assert TREE.root is not None
    assert expected_return(TREE.root, 0.0) == 1.0
    assert expected_return(TREE.root, 1.0) == 1.0 + ((2.0 + 6.0) + 4.0) / 2


def test_a_branch_that_ended_early_counts_in_later_turns() -> None:
    # The better node of turn 2 ends early; the other is expanded.
    tree = make_episode(TREE.root, ((1,), "early_termination"))
    row = episode_metrics([tree], discount=1.0, num_turns=4)
    assert (row["turn_2/reward_mean"], row["turn_2/ended_early"]) == (3.0, 0.0)
    assert (row["turn_3/reward_mean"], row["turn_3/ended_early"]) == (5.0, 0.5)  # 6 played, 4 ended early
    assert (row["turn_4/reward_mean"], row["turn_4/ended_early"]) == (4.0, 1.0)
    assert row["turn_3/expected_return"] == 5.0


def test_a_root_that_ended_early_beside_an_expanded_root() -> None:
    solved = make_episode(make_node(0, [4.0, 4.0]), ((), "early_termination"))
    row = episode_metrics([CHAIN, solved], discount=1.0, num_turns=2)
    assert row["turn_2/reward_mean"] == 4.0
    assert row["turn_2/ended_early"] == 0.5
    assert row["turn_1/expected_return"] == 5.0  # 6 and 4


def test_a_branch_that_stopped_for_another_reason_does_not_count_in_later_turns() -> None:
    stopped = make_episode(make_node(0, [1.0, 1.0], transitions={0: {}}), ((0,), "prompt_too_long"))
    assert "turn_2/reward_mean" not in episode_metrics([stopped], discount=1.0, num_turns=2)


def test_metrics_are_means_over_the_outcomes_that_have_them() -> None:
    root = make_node(
        0,
        [1.0, 1.0],
        {0: make_node(1, [1.0, 1.0]), 1: make_node(1, [1.0, 1.0])},
        transitions={0: {"expert/failures": 1.0, "a": 2.0}, 1: {"expert/failures": 0.0}},
    )
    first, second = root.joint_actions
    root.joint_actions = [
        replace(first, outcome=replace(first.outcome, metrics={"all_passed": 1.0}, levels={"tests": 0.5})),
        replace(second, outcome=replace(second.outcome, metrics={"all_passed": 0.0, "rare": 3.0})),
    ]
    row = episode_metrics([make_episode(root)], discount=1.0, num_turns=2)
    assert (row["turn_1/all_passed"], row["turn_1/rare"], row["turn_1/level/tests"]) == (0.5, 3.0, 0.5)
    assert (row["expert/failures"], row["a"]) == (0.5, 2.0)
    assert list(row)[-2:] == ["a", "expert/failures"]


def test_rewards_of_agents_are_metrics_only_if_the_environment_sets_them() -> None:
    root = make_node(0, [1.0, 3.0], {0: make_node(1, [2.0, 2.0])})
    root.joint_actions = [
        replace(action, rewards=own, outcome=replace(action.outcome, rewards=own))
        for action, own in zip(root.joint_actions, [(1.0, 0.0), (3.0, 5.0)], strict=True)
    ]
    row = episode_metrics([make_episode(root)], discount=1.0, num_turns=2)
    assert row["turn_1/reward_mean"] == 2.0
    assert (row["agent_0/turn_1/reward_mean"], row["agent_1/turn_1/reward_mean"]) == (2.0, 2.5)
    assert not any(key.startswith("agent_") and "turn_2" in key for key in row)


def test_rollout_metrics() -> None:
    tree = make_episode(
        make_node(0, [1.0, 1.0], {0: make_node(1, [1.0], counts={"sandbox/timeouts": 1, "own/tries": 3})}),
        ((1,), "prompt_too_long"),
        ((0, 0), "prompt_too_long"),
        ((1,), "infra_error"),
    )
    assert tree.root is not None
    first = tree.root.calls[0]
    first[0] = replace(first[0], completion=make_completion("cut", tokens=7, finish="length"))
    row = rollout_metrics([tree, make_episode(None, ((), "prompt_too_long"))], seconds=2.0)
    assert row == {
        "rollout/episodes": 2,
        "rollout/joint_samples": 3,
        "rollout/tokens": 17,  # 7 + 3 x 2, and 2 x 2
        "rollout/tokens_per_s": 8.5,
        "rollout/completion_tokens_mean": 17 / 6,
        "rollout/truncated_rate": 1 / 6,
        "rollout/too_long_prompts": 3,
        "rollout/control_tokens": 0,
        "rollout/unscored": 0,
        "rollout/early_terminations": 0,
        "sandbox/infra_errors": 1,
        "sandbox/untrusted": 0,
        "sandbox/timeouts": 1,
        "own/tries": 3,
    }


def test_env_steps_count_all_joint_actions_of_all_nodes() -> None:
    """Expect 2 x (4 + 16) for two tasks, G = 2, two agents, two turns, joint_mode cross and handoff all."""
    cross = [0.0] * 4
    trees = [make_episode(make_node(0, cross, {g: make_node(1, cross) for g in range(4)})) for _ in range(2)]
    assert joint_samples(trees) == 40


def test_a_step_row_has_its_metrics_in_order() -> None:
    updates = [UpdateStats(0.5, 2.0, 1e-5, 0.01, None, 1, 0), UpdateStats(0.0, 0.0, 1e-5, None, None, 0, 1)]
    calls = sibling_calls((1,), [make_completion("a", 3, version=2), make_completion("b", 4)])
    groups = (Group(0, calls, (0.0, 1.0), (-1.0, 1.0)),)
    batches = [Batch(2, (MiniBatch(groups, 1),)), Batch(2, ())]
    config = make_config(num_turns=2)
    rollout = rollout_row(config.training, config.external, [CHAIN], batches, 4.0, executions=6)
    of_policies = {PolicyId((n,)): stats for n, stats in enumerate(updates)}
    deliveries = {PolicyId((0,)): WeightSyncResult(3, 7, {}, 600, 0.25), PolicyId((1,)): WeightSyncResult(3, 7, {}, 0)}
    row = step_row(TrainerState(3, 12, 1), rollout, of_policies, deliveries, {"time/step": 8.0})
    assert list(row)[:3] == ["step", "env_steps", "turn_1/reward_mean"]
    agent = ["loss", "grad_norm", "learning_rate", "optimizer_steps", "skipped_steps", "weight_version"]
    expected = [
        "agent_0/staleness_mean",
        "agent_0/staleness_max",
        "rollout/episodes",
        "rollout/joint_samples",
        "rollout/tokens",
        "rollout/tokens_per_s",
        "rollout/completion_tokens_mean",
        "rollout/truncated_rate",
        "rollout/too_long_prompts",
        "rollout/control_tokens",
        "rollout/unscored",
        "rollout/early_terminations",
        "sandbox/infra_errors",
        "sandbox/untrusted",
        "sandbox/timeouts",
        "sandbox/executions",
        "sandbox/executions_per_s",
        "time/rollout",
        *(f"agent_0/{name}" for name in (*agent, "logprob_gap", "sent_bytes", "changed_share")),
        *(f"agent_1/{name}" for name in (*agent, "sent_bytes")),
        "time/step",
    ]
    assert list(row)[list(row).index("agent_0/staleness_mean") :] == expected
    assert (row["agent_0/staleness_mean"], row["agent_0/staleness_max"]) == (8 / 7, 2)
    assert (row["agent_0/sent_bytes"], row["agent_0/changed_share"], row["agent_1/sent_bytes"]) == (600, 0.25, 0)
    assert (row["agent_0/loss"], row["agent_1/skipped_steps"], row["sandbox/executions_per_s"]) == (0.5, 1, 1.5)


def test_loss_statistics_are_metrics() -> None:
    stats = replace(
        UpdateStats(0.5, 2.0, 1e-5, None, None, 2, 0),
        entropy=1.5,
        clipping=ClippingStats(0.25, 1.1, 1.9, 0.02),
        reference_kl=0.3,
    )
    row = update_metrics(PolicyId((1,)), stats, 4)
    assert {key.removeprefix("agent_1/"): row[key] for key in list(row)[6:]} == {
        "entropy": 1.5,
        "clip_fraction": 0.25,
        "policy_ratio_mean": 1.1,
        "policy_ratio_max": 1.9,
        "policy_kl": 0.02,
        "reference_kl": 0.3,
    }


def test_critic_statistics_are_metrics() -> None:
    stats = replace(UpdateStats(0.5, 2.0, 1e-5, None, None, 2, 0), critic=CriticStats(0.25, 1.5, 0.75))
    found = update_metrics(PolicyId((0, 1)), stats, 4)
    expected = {"policy_0/critic_loss": 0.25, "policy_0/value_mean": 1.5, "policy_0/explained_variance": 0.75}
    assert {key: found[key] for key in list(found)[6:]} == expected
    same = replace(stats, critic=CriticStats(0.25, 1.5, None))
    assert "policy_0/explained_variance" not in update_metrics(PolicyId((0, 1)), same, 4)


def test_an_evaluation_row() -> None:
    episodes = [CHAIN, make_episode(None, ((), "prompt_too_long"))]
    config = make_config(num_turns=2)
    row = evaluation_row(config.training, config.external, TrainerState(5, 80, 0), episodes, {"eval": 1.5})
    assert (row["step"], row["env_steps"], row["eval/turn_2/reward_mean"]) == (5, 80, 4.0)
    counts = ["eval/episodes", "eval/too_long_prompts", "eval/infra_errors", "eval/unscored"]
    assert list(row)[-5:] == [*counts, "time/eval"]
    assert (row["eval/episodes"], row["eval/too_long_prompts"], row["time/eval"]) == (2, 1, pytest.approx(1.5))


def test_with_handoff_all_an_early_end_counts_for_every_node_it_would_have_had() -> None:
    solved = make_episode(make_node(0, [4.0, 4.0]), ((), "early_termination"))
    going_on = make_episode(make_node(0, [0.0, 0.0], {g: make_node(1, [0.0, 0.0]) for g in (0, 1)}))
    row = episode_metrics([solved, going_on], 1.0, 2, whole=True)
    assert (row["turn_2/reward_mean"], row["turn_2/ended_early"]) == (2.0, 0.5)


def test_a_completion_of_another_branch_has_its_own_prompt() -> None:
    node = make_node(0, [1.0, 2.0])
    node.calls[1][1] = replace(node.calls[1][1], prompt="prompt after answer 0.0.1", branch=1, sibling=None)
    record = episode_record(make_episode(node))["nodes"][0]
    assert [recorded_prompt(record, 0, index) for index in (0, 1)] == ["prompt 0.0", "prompt 0.0"]
    assert [recorded_prompt(record, 1, index) for index in (0, 1)] == ["prompt 0.1", "prompt after answer 0.0.1"]
