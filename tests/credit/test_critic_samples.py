"""What a critic gets of a tree, by hand."""

from __future__ import annotations

from typing import Any

from marl_ray.credit.critic_samples import build_critic_sample, joint_state
from marl_ray.credit.groups import build_agent_batch, build_group, trainable_nodes
from tests.credit.trees import config, episode, node

# Prompts of agent i at turn t are (t, i): see `tests.credit.trees`.


def tree(critic: str, mode: str = "aligned", **section: Any) -> tuple[Any, Any]:
    """Two agents, two turns, G = 2, every joint action handed on: rewards of agent 0, and 10 more for agent 1."""
    run = config(2, 2, 2, handoff="all", joint_mode=mode, critic=critic, discount=0.5, **section)
    count = 2 if mode == "aligned" else 4
    root = node(0, 2, 2, mode, [(float(g), 10.0 + g) for g in range(count)])
    for g in range(count):
        root.children[g] = node(1, 2, 2, mode, [(2.0 * g, 0.0)] * count)
        root.transitions[g] = {}
    return run, root


def test_an_agents_own_history() -> None:
    run, root = tree("iac")
    first = build_critic_sample(root, 1, run)
    assert first.state == (0, 1)
    assert first.rewards == (10.0, 11.0)
    assert first.successors == (((1, 1),), ((1, 1),))
    last = build_critic_sample(root.children[1], 1, run)
    assert (last.state, last.rewards, last.successors) == ((1, 1), (0.0, 0.0), ((), ()))


def test_all_agents_prompts() -> None:
    run, root = tree("maac")
    assert build_critic_sample(root, 0, run).state == build_critic_sample(root, 1, run).state == (0, 0, 0, 1)
    assert build_critic_sample(root, 0, run).successors == (((1, 0, 1, 1),), ((1, 0, 1, 1),))


def test_with_cross_a_completion_leads_to_a_state_for_each_joint_action_that_holds_it() -> None:
    run, root = tree("iac", "cross")
    found = build_critic_sample(root, 0, run)
    assert found.rewards == (0.5, 2.5), "of joint actions 0 and 1, and of 2 and 3"
    assert found.successors == (((1, 0), (1, 0)), ((1, 0), (1, 0)))


def test_nodes_above_a_lost_branch_are_left_out_where_groups_are_compared() -> None:
    """Without what follows a whole group would look worse than others, by a turn's reward."""
    run, root = tree("iac")
    assert [node.turn for node in trainable_nodes(episode(root), run)] == [0, 1, 1]
    del root.children[1]
    assert [node.turn for node in trainable_nodes(episode(root), run)] == [1]
    for estimator, turns in (("reinforce_pp", [1]), ("magrpo", [0, 1])):
        siblings = config(2, 2, 2, handoff="all", estimator=estimator)
        assert [node.turn for node in trainable_nodes(episode(root), siblings)] == turns
        (mini_batch,) = build_agent_batch([episode(root)], 0, 0, siblings).mini_batches
        assert [group.turn for group in mini_batch.groups] == turns


def test_a_group_has_its_return_and_its_shares() -> None:
    """Returns are Monte-Carlo targets: r + discount * mean of the child's. Weights are shares, w_t / G."""
    run, root = tree("iac", turn_gradient_weights=[1.5, 1.0])
    group = build_group(root, 0, run)
    assert group.returns == (0.0 + 0.5 * 0.0, 1.0 + 0.5 * 2.0)
    assert group.weights == (0.75, 0.75)
    assert group.critic_sample == build_critic_sample(root, 0, run)
    assert build_group(root, 0, config(2, 2, 2, handoff="all")).critic_sample is None


def test_a_long_joint_state_keeps_the_end_of_each_prompt() -> None:
    assert joint_state([(1, 2, 3), (4, 5)], 5) == (1, 2, 3, 4, 5)
    assert joint_state([(1, 2, 3), (4, 5)], 4) == (2, 3, 4, 5)
    assert joint_state([(1, 2, 3), (4,)], 3) == (3, 4)
