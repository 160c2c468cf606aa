"""The tokens of an episode and the reward that each earns, in all and on the critical path."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from marl_ray.core.episode import Episode, Node
from marl_ray.credit.returns import expected_return


def token_counts(episodes: Sequence[Episode], order: Sequence[Sequence[int]], discount: float) -> dict[str, float]:
    """Return the mean tokens of an episode, all of them and those on its critical path, and the expected return per
    token of either kind.

    Agents of one round answer at the same time, so a round takes as long as its longest answer; rounds and turns follow
    each other. `order` lists the rounds as in `Environment.order`. Each node counts with its mean joint action, and
    several continuations of a node with their mean.
    """
    roots = [episode.root for episode in episodes if episode.root is not None]
    if not roots:
        return {}
    reward = fmean(expected_return(root, discount) for root in roots)
    counts: dict[str, float] = {}
    # If all agents answer one after the other, all tokens are on the critical path.
    one_by_one = [[agent] for agent in range(len(roots[0].calls))]
    for name, rounds in (("critical_path", order), ("all", one_by_one)):
        tokens = fmean(_tokens_from(root, rounds) for root in roots)
        counts[f"tokens/{name}"] = tokens
        if tokens:
            counts[f"reward_per_token/{name}"] = reward / tokens
    return counts


def _tokens_from(node: Node, rounds: Sequence[Sequence[int]]) -> float:
    """Return the expected tokens of a node and its continuations; branches that ended have none."""
    tokens = []
    for action in node.joint_actions:
        lengths = []
        for agent in range(len(node.calls)):
            calls = node.calls_of(agent, action)
            lengths.append(sum(len(call.completion.token_ids) for call in calls))
        tokens.append(sum(max(lengths[agent] for agent in agents) for agents in rounds))
    below = sum(_tokens_from(child, rounds) for child in node.children.values())
    branches = len(node.children) + len(node.stopped)
    return fmean(tokens) + below / max(branches, 1)
