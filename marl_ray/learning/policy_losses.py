"""Policy losses by name: how the tokens of a micro-batch become a loss. The formulas are in `marl_ray.learning.losses`.

A loss is a sum over tokens, because gradients are accumulated over micro-batches of any size and divided by the
mini-batch's normalizer at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from torch import Tensor

from marl_ray.config import OptimizerConfig
from marl_ray.learning import losses


@dataclass(frozen=True, slots=True)
class LossTokens:
    """The S tokens of one micro-batch, with padding, whose weight is 0."""

    logprobs: Tensor
    """Log-probabilities of the policy, with a gradient, [S]."""
    old_logprobs: Tensor
    """Log-probabilities before the batch's first optimizer step, [S]; later mini-batches have them only if the loss
    requires `several_optimizer_steps`."""
    behaviour_logprobs: Tensor
    """Log-probabilities of the sampler, [S]."""
    weights: Tensor
    """Product of advantage, loss share and importance factor, [S]."""
    owners: Tensor
    """Number of each token's completion in the micro-batch, from 0, [S]."""


class LossRatios(NamedTuple):
    """The ratios in a loss, for the metrics `clip_fraction`, `policy_ratio_*` and `policy_kl`; all [S]."""

    log_ratios: Tensor
    ratios: Tensor
    clipped: Tensor
    """True for tokens without a gradient."""


class PolicyLoss:
    """A policy loss of one mini-batch. Create a subclass and implement `token_loss`.

    `marl_ray.credit.requirements.requires` declares the requirements on other settings.
    """

    needs_whole_mini_batch: ClassVar[bool] = False
    """Call `start_tokens` first, at the cost of one more forward pass and of no overlap with the rollout."""

    def __init__(self, settings: OptimizerConfig) -> None:
        self.settings = settings

    def start_tokens(self, tokens: LossTokens) -> None:
        """Receive all tokens of the mini-batch, on the CPU and without a gradient, before its first gradient."""
        self.start(tokens.logprobs - tokens.behaviour_logprobs)

    def start(self, log_ratios: Tensor) -> None:
        """Receive log pi - log behaviour of all tokens, for a loss that needs no other property of them."""

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        """Return the sum of the tokens' losses, and ratios for the metrics or None."""
        raise NotImplementedError


class PolicyGradient(PolicyLoss):
    """The loss `policy_gradient`: advantage times log-probability."""

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        return losses.policy_gradient(tokens.logprobs, tokens.weights), None


class TokenClip(PolicyLoss):
    """The loss `clip`: PPO's clipped ratio per token."""

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        return self._clipped(tokens, losses.token_ratios(tokens.logprobs, tokens.old_logprobs))

    def _clipped(self, tokens: LossTokens, ratios: Tensor) -> tuple[Tensor, LossRatios | None]:
        low, high = self.settings.clip_range
        clipped = losses.is_clipped(ratios.detach(), tokens.weights, low, high)
        statistics = LossRatios(tokens.logprobs.detach() - tokens.old_logprobs, ratios.detach(), clipped)
        return losses.clipped(ratios, tokens.weights, low, high), statistics


class SequenceClip(TokenClip):
    """The loss `gspo`: one clipped ratio per completion, averaged over its tokens."""

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        owners = tokens.owners
        averaged = replace(tokens, weights=tokens.weights / losses.lengths_of(owners)[owners])
        return self._clipped(averaged, losses.sequence_ratios(tokens.logprobs, tokens.old_logprobs, owners))


class SecondMoment(PolicyLoss):
    """The loss `m2po`: ratio to the sampler, without the tokens whose ratio is furthest from 1."""

    needs_whole_mini_batch = True

    def __init__(self, settings: OptimizerConfig) -> None:
        super().__init__(settings)
        self._threshold = math.inf
        """Largest absolute log-ratio of a token with a gradient."""

    def start(self, log_ratios: Tensor) -> None:
        self._threshold = losses.second_moment_threshold(log_ratios, self.settings.m2_bound)

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        log_ratios = tokens.logprobs - tokens.behaviour_logprobs
        values = log_ratios.detach()
        statistics = LossRatios(values, values.exp(), values.abs() > self._threshold)
        return losses.second_moment(log_ratios, tokens.weights, self._threshold), statistics
