"""DPPO: Qi et al., 2026, "Rethinking the trust region in LLM reinforcement learning"; with the KL divergence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl_ray.learning.losses.dppo import TotalVariation
from marl_ray.learning.losses.policy_loss import ClipOptions

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST = 1e-8
"""Smallest probability of all other tokens."""


class BinaryDivergence(TotalVariation):
    """The loss `dppo_kl`: as `dppo`, with the KL divergence from the sampler, KL(mu || pi), of each token."""

    defaults = ClipOptions(clip_low=0.05, clip_high=0.05)  # the authors'

    def divergences(self, logprobs: Tensor, behaviour: Tensor) -> Tensor:
        """Return the KL divergence of each token between the distributions (token, any other token), [S]."""
        sampled = behaviour.exp()
        of_token = sampled * (behaviour - logprobs)
        of_others = (1 - sampled) * (_log_rest(behaviour) - _log_rest(logprobs))
        return of_token + of_others


def _log_rest(logprobs: Tensor) -> Tensor:
    """Return the log-probability of all other tokens."""
    return (1 - logprobs.exp()).clamp(min=SMALLEST).log()
