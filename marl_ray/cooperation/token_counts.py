"""The tokens of an episode and the reward that each earns, in all and on the critical path."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from marl_ray.core.episode import Episode, JointAction, Node
from marl_ray.credit.returns import expected_return


def token_counts(episodes: Sequence[Episode], order: Sequence[Sequence[int]], discount: float) -> dict[str, float]:
    """Return the mean tokens of an episode, all of them and those on its critical path, and the expected return per
    token of either kind.

    Agents of one round answer at the same time, so a round takes as long as its longest answer; rounds and turns follow
    each other. `order` lists the rounds as in `Environment.order`. Each node counts with its mean joint action, and
    several continuations of a node with their mean. A program decides itself which calls wait for each other, so its
    critical path is not known and left out.
    """
    returns = []
    on_path = []
    in_all = []
    for episode in episodes:
        root = episode.root
        if root is None:
            continue
        returns.append(expected_return(root, discount))
        if not _is_of_program(root):
            on_path.append(_tokens_from(root, order))
        # If all agents answered one after the other, all tokens would be on the critical path.
        in_all.append(_tokens_from(root, [[agent] for agent in range(len(root.calls))]))
    if not returns:
        return {}
    counts: dict[str, float] = {}
    for name, numbers in (("critical_path", on_path), ("all", in_all)):
        if not numbers:
            continue
        tokens = fmean(numbers)
        counts[f"tokens/{name}"] = tokens
        if tokens:
            counts[f"reward_per_token/{name}"] = fmean(returns) / tokens
    return counts


def _is_of_program(node: Node) -> bool:
    for calls in node.calls:
        for call in calls:
            # In other episodes siblings answer the node's own prompt.
            if call.sibling is not None and call.branch > 0:
                return True
    return False


def _tokens_from(node: Node, rounds: Sequence[Sequence[int]]) -> float:
    """Return the expected tokens of a node and its continuations; branches that ended have none."""
    tokens = []
    for action in node.joint_actions:
        tokens.append(path_tokens(node, action, rounds))
    below = 0.0
    for child in node.children.values():
        below += _tokens_from(child, rounds)
    branches = len(node.children) + len(node.stopped)
    return fmean(tokens) + below / max(branches, 1)


def path_tokens(node: Node, action: JointAction, rounds: Sequence[Sequence[int]]) -> int:
    """Return the tokens of a joint action on the critical path of its turn."""
    length = 0
    for agents in rounds:
        # A round takes as long as its longest answer.
        length += max(_answer_length(node, agent, action) for agent in agents)
    return length


def _answer_length(node: Node, agent: int, action: JointAction) -> int:
    return sum(len(call.completion.token_ids) for call in node.calls_of(agent, action))
