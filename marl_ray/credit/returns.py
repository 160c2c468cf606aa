"""Returns on a tree: what siblings are ranked by.

R_t = r_t + discount * (mean over the child's returns); a leaf's return is its reward. What follows counts only where
it is known of every sibling: with handoff `all`, at nodes below which no branch was lost. With `random` or `best` one
joint action a node is expanded, and what follows is seen for that one alone, so it cannot rank its siblings: their
returns are their own rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from marl_ray.core.episode import Node


def action_returns(node: Node, agent: int, discount: float, whole: bool) -> list[float]:
    """The return of each joint action for one agent [J]. `whole`: trees are grown whole (handoff `all`)."""
    rewards = [action.rewards[agent] for action in node.joint_actions]
    if not whole or not node.children or has_lost_branches(node):
        return rewards
    return [
        reward + discount * fmean(action_returns(node.children[index], agent, discount, whole))
        for index, reward in enumerate(rewards)
    ]


def has_lost_branches(node: Node) -> bool:
    """Whether a joint action at this node, or below it, was handed on and led nowhere."""
    return len(node.children) < len(node.transitions) or any(map(has_lost_branches, node.children.values()))


def completion_returns(node: Node, agent: int, returns: Sequence[float]) -> list[float]:
    """The return credited to each completion of the agent's group [G]: the mean over the joint actions that hold it."""
    held: list[list[float]] = [[] for _ in node.completions[agent]]
    for action, value in zip(node.joint_actions, returns, strict=True):
        held[action.indices[agent]].append(value)
    return [fmean(values) for values in held[: len(node.group(agent))]]
