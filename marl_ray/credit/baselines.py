"""What other joint actions earned, as the baselines of estimators that look beyond siblings."""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.core.episode import Node
from marl_ray.credit import BEYOND_SIBLINGS
from marl_ray.credit.returns import completion_returns


def baselines(node: Node, agent: int, estimator: str) -> list[float]:
    """What the estimator takes from the agent's returns at a node [G]; empty where it looks at returns alone.

    greedy: the reward of the node's greedy joint sample. counterfactual: the mean over the joint actions that hold the
    completion of what they had earned with the stand-in in its place.
    """
    match BEYOND_SIBLINGS.get(estimator):
        case "greedy":
            if node.greedy is None:
                raise ValueError(f"{estimator} needs a greedy joint sample at every node")
            of_actions = [node.greedy.rewards[agent]] * len(node.joint_actions)
        case "counterfactual":
            of_actions = node.counterfactuals[agent]
        case _:
            return []
    return completion_returns(node, agent, of_actions)


def median_index(returns: Sequence[float]) -> int:
    """Which of siblings is the one of median return: of an even number the lower, of equals the first."""
    return returns.index(sorted(returns)[(len(returns) - 1) // 2])
