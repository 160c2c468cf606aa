"""Returns credited to completions, and their overlong penalty.

R_t = r_t + discount * mean(returns of the children); the return of a leaf is its reward. A joint action that ended its
branch because it solved the task keeps its reward in the turns that were left (`kept_return`). Continuations count only
where they are known for every sibling: with handoff `all`, at nodes below which no branch was lost. Otherwise returns
are rewards. Overlong filtering (`is_masked`) and soft overlong punishment (`penalize_overlong`) are DAPO's (Yu et al.,
2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from marl_ray.config import CreditConfig
from marl_ray.core.episode import Completion, Node


def action_returns(node: Node, agent: int, discount: float, full_tree: bool) -> list[float]:
    """Return one agent's return of each joint action at a node, [J]. `full_tree`: handoff is `all`. The latency term
    counts once in each turn that was played."""
    rewards = node.rewards_of(agent)
    is_leaf = not node.children and not node.stopped
    if not full_tree or is_leaf or has_lost_branches(node):
        return less_latency(node, rewards)
    returns: list[float] = []
    for index, reward in enumerate(rewards):
        if index in node.stopped:
            returns.append(kept_return(reward, discount, node.stopped[index]))
        else:
            below = action_returns(node.children[index], agent, discount, full_tree)
            returns.append(reward + discount * fmean(below))
    return less_latency(node, returns)


def less_latency(node: Node, values: Sequence[float]) -> list[float]:
    """Return a value of each joint action less the cost of its time, [J]."""
    remaining: list[float] = []
    for value, action in zip(values, node.joint_actions, strict=True):
        remaining.append(value - action.latency)
    return remaining


def kept_return(reward: float, discount: float, turns_left: int) -> float:
    """Return the return of a joint action that earns its reward again in each of `turns_left` turns. Without these
    rewards, a joint action that fails first and is mended later would have the higher return.

        >>> kept_return(4.0, 0.5, 2)
        7.0
    """
    return reward * sum(discount**turn for turn in range(turns_left + 1))


def expected_return(node: Node, discount: float) -> float:
    """Return the mean reward of the node's joint actions plus the discounted mean of its children's expected returns.

    Metrics state this value. Advantages are computed from `action_returns`.
    """
    mean = fmean(action.reward for action in node.joint_actions)
    below = []
    for child in node.children.values():
        below.append(expected_return(child, discount))
    for index, turns_left in node.stopped.items():
        # A joint action that solved the task keeps its reward in the turns that are left out.
        below.append(kept_return(node.joint_actions[index].reward, discount, turns_left - 1))
    if not below:
        return mean
    return mean + discount * fmean(below)


def has_lost_branches(node: Node) -> bool:
    """Return True if a joint action at or below this node was expanded and has no child node."""
    return len(node.children) < len(node.transitions) or any(map(has_lost_branches, node.children.values()))


def completion_returns(node: Node, agent: int, returns: Sequence[float]) -> list[float]:
    """Return the mean return of the joint actions that contain each sibling of the agent's group, [G]."""
    of_sibling: dict[int, list[float]] = {}
    for call in node.calls[agent]:
        if call.sibling is not None:
            of_sibling[call.sibling] = []
    for action, value in zip(node.joint_actions, returns, strict=True):
        sibling = node.calls[agent][action.indices[agent]].sibling
        if sibling is not None:
            of_sibling[sibling].append(value)
    return list(map(fmean, of_sibling.values()))


def median_index(returns: Sequence[float]) -> int:
    """Return the index of the median: the lower of two middle values, the first of equal values."""
    return returns.index(sorted(returns)[(len(returns) - 1) // 2])


def is_masked(completion: Completion, credit: CreditConfig) -> bool:
    """Return True if the completion is left out of the loss. Its return stays in the baseline of its siblings."""
    return credit.overlong == "mask" and completion.finish_reason == "length"


def penalize_overlong(
    returns: Sequence[float], completions: Sequence[Completion], max_new_tokens: int, credit: CreditConfig
) -> list[float]:
    """Return the returns of some completions less each completion's overlong penalty."""
    if credit.overlong != "penalty":
        return list(returns)
    penalized: list[float] = []
    for value, completion in zip(returns, completions, strict=True):
        fraction = overlong_fraction(completion, max_new_tokens, credit.overlong_buffer)
        penalized.append(value - credit.overlong_penalty * fraction)
    return penalized


def overlong_fraction(completion: Completion, max_new_tokens: int, buffer: int) -> float:
    """Return the used share of the last `buffer` tokens, 0 to 1; 1 for a completion that was cut off."""
    if completion.finish_reason == "length":
        return 1.0
    if not buffer:  # only completions that were cut off are penalised
        return 0.0
    used = len(completion.token_ids) - (max_new_tokens - buffer)
    return max(used, 0) / buffer
