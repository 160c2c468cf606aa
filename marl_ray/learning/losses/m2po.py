"""M2PO: Zheng et al., 2025, "Prosperity before collapse: how far can off-policy RL reach with stale data on LLMs?"."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marl_ray.credit.requirements import Requirements
from marl_ray.learning.losses.policy_loss import LossOptions, LossRatios, LossTokens, PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor

    from marl_ray.config import OptimizerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondMomentOptions(LossOptions):
    """The option of the loss `m2po`."""

    m2_bound: float = 0.04
    """Maximum mean square of the log-ratios of the tokens that are kept."""


class SecondMoment(PolicyLoss):
    """The loss `m2po`: -sum(r * weight), where r = pi / behaviour is the ratio to the sampler.

    The tokens whose log r is furthest from 0 are left out, until the mean of (log r)^2 is at most `m2_bound`.
    """

    requirements = Requirements(off_policy_tokens=True, own_importance_ratio=True)
    defaults = SecondMomentOptions()
    needs_whole_mini_batch = True
    options: SecondMomentOptions

    def __init__(self, settings: OptimizerConfig) -> None:
        super().__init__(settings)
        self._threshold = math.inf
        """Largest absolute log-ratio of a token with a gradient."""

    def start(self, log_ratios: Tensor) -> None:
        self._threshold = second_moment_threshold(log_ratios, self.options.m2_bound)

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        log_ratios = tokens.logprobs - tokens.behaviour_logprobs
        values = log_ratios.detach()
        statistics = LossRatios(values, values.exp(), values.abs() > self._threshold)
        return second_moment(log_ratios, tokens.weights, self._threshold), statistics


def second_moment_threshold(log_ratios: Tensor, bound: float) -> float:
    """Return the largest |log ratio| that keeps its gradient, given the log-ratios of all tokens of a mini-batch.

    The tokens furthest from 0 are dropped until the mean square of the remaining ones is at most `bound`; ties are
    dropped together. The threshold is infinite if all tokens are kept and negative if none is.
    """
    distances = log_ratios.double().abs().sort().values
    counts = distances.new_ones(len(distances)).cumsum(0)  # 1, 2, 3, ...
    means = distances.square().cumsum(0) / counts  # of the nearest 1, 2, 3, ... tokens, and so non-decreasing
    kept = int((means <= bound).sum())
    if kept == len(distances):
        return math.inf
    within = distances[distances < distances[kept]]
    if not len(within):
        return -1.0
    # Between the last kept and the first dropped value, so that recomputed log-ratios are classified alike.
    return float(within[-1] + distances[kept]) / 2


def second_moment(log_ratios: Tensor, weights: Tensor, threshold: float) -> Tensor:
    """Return -sum(ratio * weight) over the tokens with |log ratio| <= threshold."""
    kept = log_ratios.detach().abs() <= threshold
    # Dropped log-ratios are replaced before `exp`, whose overflow times 0 would not be 0.
    ratios = log_ratios.where(kept, 0.0).exp()
    return -(ratios * weights * kept).sum()
