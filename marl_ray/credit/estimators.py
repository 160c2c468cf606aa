"""Advantage estimators: pure functions of returns [..., G], where the last dimension holds siblings.

MAGRPO and its variants are from "LLM Collaboration with Multi-Agent Reinforcement Learning" (Liu et al., 2025); GRPO is
from DeepSeekMath (Shao et al., 2024); leave-one-out is from RLOO (Ahmadian et al., 2024).

`remax`, `difference`, `centred_difference`, `opo`, `gdpo` and `madpo` take a second argument [..., G]
(`marl_ray.credit.returns.baselines`). `reinforce_pp` and `gdpo` take the values of a whole batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # tensors bring their own operations, so this module does not need torch
    from torch import Tensor

Estimator = Callable[..., "Tensor"]
EPSILON = 1e-6
ROUNDING = 1e-9
"""Difference of two returns, relative to the largest of them, below which only rounding tells them apart."""


def relative(estimator: Estimator) -> Estimator:
    """Wrap an estimator that compares siblings: returns that are equal up to rounding give exact zeros."""

    @functools.wraps(estimator)
    def exact(returns: Tensor, *others: Tensor) -> Tensor:
        return estimator(returns, *others).masked_fill(_are_equal(returns, returns.abs()), 0.0)

    return exact


def _are_equal(values: Tensor, sizes: Tensor) -> Tensor:
    """Return whether the siblings' values [..., G] are equal up to rounding, [..., 1].

    `sizes` [..., G] are the absolute values of the numbers that the values were computed from.
    """
    spread = values.amax(dim=-1, keepdim=True) - values.amin(dim=-1, keepdim=True)
    largest = sizes.amax(dim=-1, keepdim=True)
    return (spread <= ROUNDING * largest) & largest.isfinite()


def _difference(returns: Tensor, baselines: Tensor) -> Tensor:
    """Return R - baseline, and exactly zero where the two are equal up to rounding."""
    sizes = returns.abs().maximum(baselines.abs())
    differences = returns - baselines
    are_equal = (differences.abs() <= ROUNDING * sizes) & sizes.isfinite()
    return differences.masked_fill(are_equal, 0.0)


@relative
def magrpo(returns: Tensor) -> Tensor:
    """Return R - mean(R). GRPO is the case of one agent."""
    return returns - returns.mean(dim=-1, keepdim=True)


@relative
def marloo(returns: Tensor) -> Tensor:
    """Return R minus the mean of the other siblings: G / (G - 1) times MAGRPO. Raises ValueError if G is 1."""
    group = returns.shape[-1]
    if group < 2:
        raise ValueError("marloo needs at least 2 returns in a group")
    return (returns - returns.mean(dim=-1, keepdim=True)) * (group / (group - 1))


@relative
def maremax(returns: Tensor) -> Tensor:
    """Return R - max(R), so that no advantage is positive."""
    return returns - returns.max(dim=-1, keepdim=True).values


def mareinforce(returns: Tensor) -> Tensor:
    """Return R, without a baseline."""
    return returns.clone()


def remax(returns: Tensor, greedy: Tensor) -> Tensor:
    """Return R - R(greedy), where the baseline is the reward of the greedy joint action: ReMax (Li et al., 2024,
    "ReMax: a simple, effective, and efficient reinforcement learning method for aligning large language models")."""
    return _difference(returns, greedy)


def difference(returns: Tensor, without: Tensor) -> Tensor:
    """Return R - R(without the agent): the difference reward of Wolpert and Tumer (2002, "Optimal payoff functions for
    members of collectives"). The contribution of the other agents cancels."""
    return _difference(returns, without)


def centred_difference(returns: Tensor, without: Tensor) -> Tensor:
    """Return D - mean(D) with D = R - R(without the agent), whose mean over siblings has no influence on the gradient.

    A group in which all difference rewards are high has large raw advantages of one sign, and so a gradient of large
    variance. With the baselines of `shapley`, D is the agent's Shapley value (Shapley, 1953, "A value for n-person
    games").
    """
    sizes = returns.abs().maximum(without.abs())
    differences = returns - without
    return magrpo(differences).masked_fill(_are_equal(differences, sizes), 0.0)


@relative
def opo(returns: Tensor, lengths: Tensor) -> Tensor:
    """Return R - sum(length * R) / sum(length), with the lengths of the siblings in tokens.

    This is the baseline of least gradient variance if the squared norm of a completion's gradient grows in proportion
    to its length: OPO (Hao et al., 2025, "On-policy RL with optimal reward baseline").
    """
    return returns - (lengths * returns).sum(dim=-1, keepdim=True) / lengths.sum(dim=-1, keepdim=True)


@relative
def maxrl(returns: Tensor) -> Tensor:
    """Return (R - mean(R)) / mean(R), and 0 for groups whose mean is not positive.

    For rewards of 0 and 1 the gradient is that of the log-probability p of success, log p = - sum of (1 - p)^k / k, up
    to k = G - 1, so that a task counts for more, the fewer siblings solve it: MaxRL (Tajwar et al., 2026, "Maximum
    likelihood reinforcement learning").
    """
    mean = returns.mean(dim=-1, keepdim=True)
    return ((returns - mean) / mean).where(mean > 0, 0.0)


def pass_at_k(returns: Tensor) -> Tensor:
    """Return max(R) - the second largest R for the best sibling, and 0 for all others.

    This is the leave-one-out estimate for the objective max(R) of k = G samples (Tang et al., 2025, "Optimizing
    language models for inference time objectives using reinforcement learning"). Raises ValueError if G is 1.
    """
    if returns.shape[-1] < 2:
        raise ValueError("pass_at_k needs at least 2 returns in a group")
    best, second = returns.topk(2, dim=-1).values.split(1, dim=-1)
    return _difference(best, second) * (returns == best)


def gdpo(returns: Tensor, normalized: Tensor) -> Tensor:
    """Return S / root mean square of S, given the sums S of reward levels that are normalised one by one.

    GDPO (Liu et al., 2026, "GDPO: group reward-decoupled normalization policy optimization for multi-reward RL
    optimization"). The last dimension holds all completions of a batch; the sums have mean 0 in every group.
    """
    return normalized / (normalized.square().mean(dim=-1, keepdim=True).sqrt() + EPSILON)


def madpo(returns: Tensor, preferences: Tensor) -> Tensor:
    """Return the weights of the preferences between the siblings (`marl_ray.credit.preferences`)."""
    return preferences.clone()


def distillation(returns: Tensor) -> Tensor:
    """Return zeros, so that the divergence from the reference policy is the only gradient.

    With `reference_kl: k2_in_loss` this is on-policy distillation (Agarwal et al., 2024, "On-policy distillation of
    language models: learning from self-generated mistakes"), with the reverse KL divergence of Gu et al. (2024,
    "MiniLLM: knowledge distillation of large language models").
    """
    return returns.new_zeros(returns.shape)


def reinforce_pp(returns: Tensor) -> Tensor:
    """Return (R - mean(R)) / std(R), where the last dimension holds all completions of a batch and not only siblings.

    REINFORCE++ (Hu et al., 2025, "REINFORCE++: stabilizing critic-free policy optimization with global advantage
    normalization"), normalised over completions instead of tokens. All advantages of a task that is too easy are
    positive, and all of a task that is too hard are negative.
    """
    return whitened(returns)


@relative
def whitened(advantages: Tensor) -> Tensor:
    """Return (A - mean(A)) / std(A) with the population standard deviation; equal values give zeros."""
    centered = advantages - advantages.mean(dim=-1, keepdim=True)
    return centered / (centered.std(dim=-1, keepdim=True, correction=0) + EPSILON)
