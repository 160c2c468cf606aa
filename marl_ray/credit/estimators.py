"""Group-relative advantages: pure functions of the returns of one node's G joint actions.

MAGRPO and its relatives are from "LLM Collaboration with Multi-Agent Reinforcement Learning" (Liu et al.,
2025); GRPO from DeepSeekMath (Shao et al., 2024); leave-one-out from RLOO (Ahmadian et al., 2024).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

EPSILON = 1e-6


def magrpo(returns: torch.Tensor) -> torch.Tensor:
    """R - mean(R). GRPO is the case of one agent."""
    return returns - returns.mean(dim=-1, keepdim=True)


def marloo(returns: torch.Tensor) -> torch.Tensor:
    """R minus the mean of the others: G / (G - 1) times MAGRPO's."""
    group = returns.shape[-1]
    return (returns - returns.mean(dim=-1, keepdim=True)) * (group / (group - 1))


def maremax(returns: torch.Tensor) -> torch.Tensor:
    """R - max(R): the group's best is the baseline, no advantage is positive."""
    return returns - returns.max(dim=-1, keepdim=True).values


def mareinforce(returns: torch.Tensor) -> torch.Tensor:
    """R itself, no baseline."""
    return returns.clone()


ESTIMATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "magrpo": magrpo,
    "grpo": magrpo,
    "marloo": marloo,
    "maremax": maremax,
    "mareinforce": mareinforce,
}


def group_advantages(returns: torch.Tensor, estimator: str, whiten: bool = False) -> torch.Tensor:
    """Advantages of returns [..., G], where the last dimension holds siblings; same shape and dtype.

    `whiten` subtracts the group's mean and divides by its (population) standard deviation; every estimator
    then gives the same, and a group of equal returns gives zeros. Raises ValueError for an unknown estimator
    and for leave-one-out in a group of one.
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"unknown estimator '{estimator}': use one of {', '.join(ESTIMATORS)}")
    if estimator == "marloo" and returns.shape[-1] < 2:
        raise ValueError("marloo needs at least 2 returns in a group")
    advantages = ESTIMATORS[estimator](returns)
    if whiten:
        centered = advantages - advantages.mean(dim=-1, keepdim=True)
        advantages = centered / (centered.std(dim=-1, keepdim=True, correction=0) + EPSILON)
    return advantages
