"""Returns credited to completions, their overlong penalty, and the baselines of estimators that sample extra actions.

R_t = r_t + discount * mean(returns of the children); the return of a leaf is its reward. A joint action that ended its
branch because it solved the task keeps its reward in the turns that were left (`kept_return`). Continuations count only
where they are known for every sibling: with handoff `all`, at nodes below which no branch was lost. Otherwise returns
are rewards. Overlong filtering (`is_masked`) and soft overlong punishment (`penalize_overlong`) are DAPO's (Yu et al.,
2025).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from statistics import fmean

from marl_ray.config import Config, CreditConfig
from marl_ray.core.episode import Completion, Node
from marl_ray.core.preference import preferences_by_return
from marl_ray.credit.estimators import whitened
from marl_ray.credit.preferences import joint_logprobs, preference_weights
from marl_ray.credit.requirements import estimator_requirements

ROUNDING = 1e-9
"""Largest difference between a return and the sum of its levels that is due to rounding."""


def action_returns(node: Node, agent: int, discount: float, full_tree: bool) -> list[float]:
    """Return one agent's return of each joint action at a node, [J]. `full_tree`: handoff is `all`."""
    rewards = [action.rewards[agent] for action in node.joint_actions]
    if not full_tree or not (node.children or node.stopped) or has_lost_branches(node):
        return rewards
    return [
        kept_return(reward, discount, node.stopped[index])
        if index in node.stopped
        else reward + discount * fmean(action_returns(node.children[index], agent, discount, full_tree))
        for index, reward in enumerate(rewards)
    ]


def kept_return(reward: float, discount: float, turns_left: int) -> float:
    """Return the return of a joint action that earns its reward again in each of `turns_left` turns. Without these
    rewards, a joint action that fails first and is mended later would have the higher return.

        >>> kept_return(4.0, 0.5, 2)
        7.0
    """
    return reward * sum(discount**turn for turn in range(turns_left + 1))


def has_lost_branches(node: Node) -> bool:
    """Return True if a joint action at or below this node was expanded and has no child node."""
    return len(node.children) < len(node.transitions) or any(map(has_lost_branches, node.children.values()))


def completion_returns(node: Node, agent: int, returns: Sequence[float]) -> list[float]:
    """Return the mean return of the joint actions that contain each completion of the agent's group, [G]."""
    of_completion: list[list[float]] = [[] for _ in node.completions[agent]]
    for action, value in zip(node.joint_actions, returns, strict=True):
        of_completion[action.indices[agent]].append(value)
    return [fmean(values) for values in of_completion[: len(node.group(agent))]]


def baselines(
    node: Node, agent: int, config: Config, of_actions: Sequence[float], credited: Sequence[float]
) -> list[float]:
    """Return the second argument of an estimator, [G]; empty if it has none.

    - greedy sample: the reward of the node's greedy joint action;
    - coalition samples: the mean over these joint actions of their rewards less the agent's Shapley value;
    - counterfactual sample: the mean over the joint actions that contain the completion of their rewards with the
      completion replaced;
    - lengths: the number of tokens of each completion;
    - reward levels: see `normalized_levels`, with the `credited` returns [G];
    - joint log-probabilities: the weights of preferences by the returns of the joint actions, `of_actions` [J], less
      the agent's overlong penalty.
    """
    settings = config.agents[agent]
    needs = estimator_requirements(settings.estimator)
    if needs.joint_logprobs:
        own = [node.completions[agent][action.indices[agent]] for action in node.joint_actions]
        penalized = penalize_overlong(of_actions, own, settings.max_new_tokens, config.credit)
        preferences = preferences_by_return(penalized, config.credit.preference_pairs)
        return preference_weights(node, agent, preferences, joint_logprobs(node), settings.preference_beta)
    if needs.lengths:
        return [float(len(completion.token_ids)) for completion in node.group(agent)]
    if needs.reward_levels:
        scale = config.reward_processor.scale_factor if config.reward_processor.enabled else 1.0
        return normalized_levels(node, agent, credited, scale)
    if needs.greedy_sample:
        if node.greedy is None:
            raise ValueError(f"{settings.estimator} needs a greedy joint sample at every node")
        return completion_returns(node, agent, [node.greedy.rewards[agent]] * len(node.joint_actions))
    extra = needs.counterfactual_sample or needs.coalition_samples
    return completion_returns(node, agent, node.counterfactuals[agent]) if extra else []


def normalized_levels(node: Node, agent: int, returns: Sequence[float], scale: float) -> list[float]:
    """Return the sum of the levels' values, each less its mean in the group and divided by its deviation, [G].

    `scale` is the factor of the reward. The rest of the credited `returns` [G], for example an overlong penalty, the
    agent's own part of the reward or a continuation, is one more level.
    """
    import torch  # imported late: the driver starts without torch

    names = list(dict.fromkeys(chain.from_iterable(action.outcome.levels for action in node.joint_actions)))
    values = [
        completion_returns(node, agent, [scale * action.outcome.levels.get(name, 0.0) for action in node.joint_actions])
        for name in names
    ]
    rest = [value - sum(levels) for value, *levels in zip(returns, *values, strict=True)]
    rest = [value - rest[0] for value in rest]
    values.append([0.0 if math.isclose(value, 0.0, abs_tol=ROUNDING) else value for value in rest])
    result: list[float] = whitened(torch.tensor(values, dtype=torch.float64)).sum(dim=0).tolist()
    return result


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
    return [
        value - credit.overlong_penalty * overlong_fraction(completion, max_new_tokens, credit.overlong_buffer)
        for value, completion in zip(returns, completions, strict=True)
    ]


def overlong_fraction(completion: Completion, max_new_tokens: int, buffer: int) -> float:
    """Return the used share of the last `buffer` tokens, 0 to 1; 1 for a completion that was cut off."""
    if completion.finish_reason == "length":
        return 1.0
    used = len(completion.token_ids) - (max_new_tokens - buffer)
    return max(used, 0) / buffer if buffer else 0.0
