"""MAGRPO and its variants, which compare the returns of siblings with one baseline.

Liu et al. (2025), "LLM Collaboration with Multi-Agent Reinforcement Learning". With one agent this is
GRPO (Shao et al., 2024, "DeepSeekMath") without the division by the deviation, which `normalize_advantages` adds.
"""

from __future__ import annotations

from marl_ray.credit.estimators.base import Estimator, SiblingValues, Tensor, less_mean, zero_if_equal
from marl_ray.credit.requirements import Requirements


class Magrpo(Estimator):
    """A = R - mean(R)."""

    requirements = Requirements(siblings=True)

    def advantages(self, values: SiblingValues) -> Tensor:
        return less_mean(values.returns)


class Marloo(Estimator):
    """A = R - mean of the other siblings' R, which is G / (G - 1) times MAGRPO's.

    The baseline of RLOO: Ahmadian et al. (2024), "Back to basics: revisiting REINFORCE style optimization for learning
    from human feedback in LLMs".
    """

    requirements = Requirements(siblings=True, magrpo_if_whitened=True)

    def advantages(self, values: SiblingValues) -> Tensor:
        """Return the advantages. Raises ValueError if G is 1."""
        returns = values.returns
        size = returns.shape[-1]
        if size < 2:
            raise ValueError("marloo needs at least 2 returns in a group")
        centered = returns - returns.mean(dim=-1, keepdim=True)
        return zero_if_equal(centered * (size / (size - 1)), returns)


class Maremax(Estimator):
    """A = R - max(R), so that no advantage is positive."""

    requirements = Requirements(siblings=True, magrpo_if_whitened=True)

    def advantages(self, values: SiblingValues) -> Tensor:
        returns = values.returns
        return zero_if_equal(returns - returns.max(dim=-1, keepdim=True).values, returns)


class Mareinforce(Estimator):
    """A = R, without a baseline."""

    requirements = Requirements(complete_returns=True)

    def advantages(self, values: SiblingValues) -> Tensor:
        return values.returns.clone()
