"""The gradient of one mini-batch, which grows as its groups come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from marl_ray.config.schema import OptimizerConfig
from marl_ray.core.batch import Group
from marl_ray.learning.batching import NO_TOKEN, Cutter, Layout, MicroBatch, rows_of
from marl_ray.learning.importance import Agreement, importance_factors
from marl_ray.learning.policy import compute_in, token_logprobs


class Gradient:
    """The gradient of a mini-batch's loss, in the policy's parameters, which it clears first.

    The loss is minus the sum over all completions of weight * sum_k factor_k * log pi(token_k | prompt, tokens before
    k), over the mini-batch's normalizer. It is linear in the groups, so they need not all be known: their gradients add
    up, and are scaled once by `close`. Which groups share a micro-batch follows from their order alone, and those that
    fill none wait for the next: in whatever portions the groups come, the bits are the same.

    groups: how many were added; loss: their sum, and after `close` the loss; agreement: of learner and sampler, on the
    tokens that were learned from.
    """

    def __init__(
        self, policy: Any, layout: Layout, temperature: float, dtype: torch.dtype, settings: OptimizerConfig
    ) -> None:
        policy.zero_grad()
        self.groups = 0
        self.loss = 0.0
        self.agreement = Agreement(settings.importance, settings.importance_bound)
        self._policy, self._temperature, self._dtype, self._settings = policy, temperature, dtype, settings
        self._cutter = Cutter(settings.microbatch_tokens, layout)

    def add(self, groups: Sequence[Group]) -> None:
        """The next groups, in their order."""
        for micro_batch in self._cutter.add(rows_of(groups)):
            self._backward(micro_batch)
        self.groups += len(groups)

    def close(self, normalizer: int) -> None:
        """There are no more groups: compute what waited, and scale."""
        for micro_batch in self._cutter.rest():
            self._backward(micro_batch)
        self.loss /= normalizer
        for parameter in self._policy.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(normalizer)

    def _backward(self, micro_batch: MicroBatch) -> None:
        batch = micro_batch.to(self._policy.device)
        with compute_in(self._dtype, self._policy.device):
            logprobs = token_logprobs(self._policy, batch, self._temperature)
            ratios = (logprobs.detach() - batch.behaviour_logprobs).exp()
            factors = importance_factors(ratios, self._settings.importance, self._settings.importance_bound)
            loss = -(batch.weights * factors * logprobs).sum()
        loss.backward()
        self.loss += loss.item()
        real = batch.tokens != NO_TOKEN
        self.agreement.add(logprobs.detach()[real], batch.behaviour_logprobs[real])
