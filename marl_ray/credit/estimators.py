"""Advantages: pure functions of returns [..., G], where the last dimension holds siblings.

MAGRPO and its relatives are from "LLM Collaboration with Multi-Agent Reinforcement Learning" (Liu et al.,
2025); GRPO from DeepSeekMath (Shao et al., 2024); leave-one-out from RLOO (Ahmadian et al., 2024).

Three look beyond siblings (`BEYOND_SIBLINGS`): remax and difference take baselines [..., G] beside the returns, each
what another joint action earned (`marl_ray.credit.baselines`); in reinforce_pp all of a batch are siblings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a tensor brings its operations along, and whoever has none needs no torch
    from torch import Tensor

Estimator = Callable[..., "Tensor"]
EPSILON = 1e-6


def relative(estimator: Estimator) -> Estimator:
    """For estimators that compare siblings: equal returns give exact zeros, however a mean is rounded."""

    @functools.wraps(estimator)
    def exact(returns: Tensor) -> Tensor:
        equal = (returns == returns[..., :1]).all(dim=-1, keepdim=True)
        return estimator(returns).masked_fill(equal, 0.0)

    return exact


@relative
def magrpo(returns: Tensor) -> Tensor:
    """R - mean(R). GRPO is the case of one agent."""
    return returns - returns.mean(dim=-1, keepdim=True)


@relative
def marloo(returns: Tensor) -> Tensor:
    """R minus the mean of the others: G / (G - 1) times MAGRPO's. Raises ValueError for a group of one."""
    group = returns.shape[-1]
    if group < 2:
        raise ValueError("marloo needs at least 2 returns in a group")
    return (returns - returns.mean(dim=-1, keepdim=True)) * (group / (group - 1))


@relative
def maremax(returns: Tensor) -> Tensor:
    """R - max(R): the group's best is the baseline, no advantage is positive."""
    return returns - returns.max(dim=-1, keepdim=True).values


def mareinforce(returns: Tensor) -> Tensor:
    """R itself, no baseline."""
    return returns.clone()


def remax(returns: Tensor, greedy: Tensor) -> Tensor:
    """R - R(greedy): the baseline is what the team earns when every agent gives its most likely answer.

    ReMax (Li et al., 2024, "ReMax: a simple, effective, and efficient reinforcement learning method for aligning large
    language models"), with the joint action in the place of the response.
    """
    return returns - greedy


def difference(returns: Tensor, without: Tensor) -> Tensor:
    """R - R(without the agent): the difference reward of Wolpert and Tumer (2002, "Optimal payoff functions for members
    of collectives"). What the others brought is on both sides, so that an agent is not paid for their luck."""
    return returns - without


def reinforce_pp(returns: Tensor) -> Tensor:
    """(R - mean(R)) / std(R), where the last dimension holds all completions of a batch, not only siblings.

    REINFORCE++ (Hu et al., 2025, "REINFORCE++: stabilizing critic-free policy optimization with global advantage
    normalization"), over completions, not tokens. A task that is too easy has positive advantages throughout, one that
    is too hard negative ones.
    """
    return whitened(returns)


@relative
def whitened(advantages: Tensor) -> Tensor:
    """(A - mean(A)) / std(A), the population's. Every estimator above then gives the same; equal ones give zeros."""
    centered = advantages - advantages.mean(dim=-1, keepdim=True)
    return centered / (centered.std(dim=-1, keepdim=True, correction=0) + EPSILON)
