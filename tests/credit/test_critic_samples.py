"""Hand-computed critic samples of a tree."""

from __future__ import annotations

from typing import Any

from marl_ray.config import Config
from marl_ray.core.batch import CriticSample
from marl_ray.core.episode import Node
from marl_ray.credit.groups import build_critic_sample, build_group, joint_state, trainable_nodes
from tests.credit.trees import episode, node, tree_config
from tests.credit.whole_batches import build_agent_batch

# The prompt of agent i at turn t is (t, i): see `tests.credit.trees`.


def tree(critic: str, mode: str = "aligned", **section: Any) -> tuple[Any, Any]:
    """Return a config and a tree: two agents, two turns, G = 2, all joint actions expanded; agent 1 earns 10 more."""
    run = tree_config(2, 2, 2, handoff="all", joint_mode=mode, critic=critic, discount=0.5, **section)
    count = 2 if mode == "aligned" else 4
    root = node(0, 2, 2, mode, [(float(g), 10.0 + g) for g in range(count)])
    for g in range(count):
        root.children[g] = node(1, 2, 2, mode, [(2.0 * g, 0.0)] * count)
        root.transitions[g] = {}
    return run, root


def sample_of(root: Node, agent: int, run: Config) -> CriticSample:
    return build_critic_sample(root, agent, run.agents[agent], run.training, run.model.max_length)


def test_iac_states_are_the_agents_own_prompts() -> None:
    run, root = tree("iac")
    first = sample_of(root, 1, run)
    assert first.state == (0, 1)
    assert first.rewards == (10.0, 11.0)
    assert first.successors == (((1, 1),), ((1, 1),))
    last = sample_of(root.children[1], 1, run)
    assert (last.state, last.rewards, last.successors) == ((1, 1), (0.0, 0.0), ((), ()))


def test_maac_states_are_the_prompts_of_all_agents() -> None:
    run, root = tree("maac")
    assert sample_of(root, 0, run).state == sample_of(root, 1, run).state == (0, 0, 0, 1)
    assert sample_of(root, 0, run).successors == (((1, 0, 1, 1),), ((1, 0, 1, 1),))


def test_cross_mode_has_one_successor_per_joint_action_of_a_completion() -> None:
    run, root = tree("iac", "cross")
    sample = sample_of(root, 0, run)
    assert sample.rewards == (0.5, 2.5), "of joint actions 0 and 1, and of 2 and 3"
    assert sample.successors == (((1, 0), (1, 0)), ((1, 0), (1, 0)))


def test_nodes_above_a_lost_branch_are_skipped_if_groups_are_compared() -> None:
    # Without its continuation a whole group would look worse than others by the reward of a turn.
    run, root = tree("iac")
    assert [node.turn for node in trainable_nodes(episode(root), run.training, run.agents)] == [0, 1, 1]
    del root.children[1]
    assert [node.turn for node in trainable_nodes(episode(root), run.training, run.agents)] == [1]
    for estimator, turns in (("reinforce_pp", [1]), ("magrpo", [0, 1])):
        siblings = tree_config(2, 2, 2, handoff="all", estimator=estimator)
        assert [node.turn for node in trainable_nodes(episode(root), siblings.training, siblings.agents)] == turns
        (mini_batch,) = build_agent_batch([episode(root)], 0, 0, siblings).mini_batches
        assert [group.turn for group in mini_batch.groups] == turns


def test_the_target_of_a_branch_that_ended_early_is_its_reward() -> None:
    # As in CoMLRL: the last turn that was played has no next value and no later rewards, wherever the branch ends.
    run, root = tree("iac")
    root.children, root.transitions = {}, {}
    assert trainable_nodes(episode(root), run.training, run.agents) == [root]
    group = build_group(root, 0, run)
    assert group.returns == (0.0, 1.0)
    assert group.critic_sample is not None
    assert (group.critic_sample.rewards, group.critic_sample.successors) == ((0.0, 1.0), ((), ()))


def test_a_group_with_a_critic_has_returns_and_loss_shares() -> None:
    # Returns are Monte-Carlo targets, r + discount * mean of the children; weights are loss shares, w_t / G.
    run, root = tree("iac", turn_gradient_weights=[1.5, 1.0])
    group = build_group(root, 0, run)
    assert group.returns == (0.0 + 0.5 * 0.0, 1.0 + 0.5 * 2.0)
    assert group.weights == (0.75, 0.75)
    assert group.critic_sample == sample_of(root, 0, run)
    assert build_group(root, 0, tree_config(2, 2, 2, handoff="all")).critic_sample is None


def test_a_joint_state_that_is_too_long_keeps_the_end_of_each_prompt() -> None:
    assert joint_state([(1, 2, 3), (4, 5)], 5) == (1, 2, 3, 4, 5)
    assert joint_state([(1, 2, 3), (4, 5)], 4) == (2, 3, 4, 5)
    assert joint_state([(1, 2, 3), (4,)], 3) == (3, 4)
