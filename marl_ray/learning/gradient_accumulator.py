"""Gradient and statistics of one mini-batch, accumulated while its groups arrive, and the statistics of an update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from marl_ray.config import OptimizerConfig
from marl_ray.core.batch import ClippingStats, ImportanceRatioStats, UpdateStats
from marl_ray.learning import LOSSES
from marl_ray.learning.critic import ValueEstimate, critic_stats
from marl_ray.learning.importance import exceeds_bound, importance_factors
from marl_ray.learning.kl_estimates import k2, k3
from marl_ray.learning.losses.policy_loss import LossTokens, PolicyLoss
from marl_ray.learning.micro_batches import NO_TOKEN, MicroBatch, MicroBatcher, PromptRow
from marl_ray.learning.policy_model import LogprobModel
from marl_ray.learning.sharding import discard_unreduced_gradients, reduces_once
from marl_ray.learning.torch_private import divide_all
from marl_ray.models.lora import trainable

IN_LOSS = {"k2_in_loss": k2, "k3_in_loss": k3}
"""Estimates of the divergence from the reference policy that are a term of the loss, by value of `reference_kl`."""


class _TokenSums:
    """Sums and one maximum over tokens of micro-batches and ranks, in float64, where ratios do not overflow."""

    def __init__(self, size: int) -> None:
        self.tokens = 0
        self._sums = [0.0] * size
        self._max = 0.0

    def _add(self, tokens: int, sums: Sequence[torch.Tensor], maximum: torch.Tensor) -> None:
        *values, largest = torch.stack([*sums, maximum]).tolist()  # one synchronisation with the device
        self.tokens += tokens
        self._sums = [total + value for total, value in zip(self._sums, values, strict=True)]
        self._max = max(self._max, largest)

    def __iadd__(self, other: Self) -> Self:
        self.tokens += other.tokens
        self._sums = [mine + theirs for mine, theirs in zip(self._sums, other._sums, strict=True)]
        self._max = max(self._max, other._max)
        return self


class ImportanceRatioAccumulator(_TokenSums):
    """Statistics of the importance ratios pi(token) / behaviour(token) of at least one trained token."""

    def __init__(self, mode: str, bound: float) -> None:
        super().__init__(4)
        self._mode, self._bound = mode, bound

    def add(self, logprobs: torch.Tensor, behaviour_logprobs: torch.Tensor) -> None:
        """Add tokens given by their log-probabilities, both [S] without padding."""
        if not len(logprobs):
            return
        differences = logprobs.detach().double() - behaviour_logprobs.double()
        ratios = differences.exp()
        cut = exceeds_bound(ratios, self._mode, self._bound).sum().double()
        self._add(len(logprobs), [differences.abs().sum(), ratios.sum(), ratios.square().sum(), cut], ratios.max())

    @property
    def logprob_gap(self) -> float:
        """Mean absolute difference of log-probabilities in nats per token."""
        return self._sums[0] / self.tokens

    @property
    def stats(self) -> ImportanceRatioStats:
        _, total, squares, cut = self._sums
        effective = total * total / (self.tokens * squares) if squares else 0.0
        return ImportanceRatioStats(total / self.tokens, self._max, cut / self.tokens, effective)


class ClippingAccumulator(_TokenSums):
    """Statistics of the ratios in the loss, from the policy at which they are 1: KL and fraction of clipped tokens."""

    def __init__(self) -> None:
        super().__init__(3)

    def add(self, log_ratios: torch.Tensor, ratios: torch.Tensor, clipped: torch.Tensor) -> None:
        """Add tokens given by log pi - log old, the ratio in the loss, and whether their gradient is zero; all [S]."""
        if not len(log_ratios):
            return
        own = log_ratios.double()
        sums = [clipped.sum().double(), ratios.double().sum(), (own.exp() - 1 - own).sum()]
        self._add(len(log_ratios), sums, ratios.double().max())

    @property
    def stats(self) -> ClippingStats | None:
        if not self.tokens:
            return None
        clipped, ratios, kl = (total / self.tokens for total in self._sums)
        return ClippingStats(clipped, ratios, self._max, kl)


class GradientAccumulator:
    """The gradient of a mini-batch's loss in the policy's parameters, which are cleared first.

    The loss is a sum over tokens and linear in the groups, so gradients are accumulated as groups arrive, and divided
    by the mini-batch's normalizer once, in `close`. The assignment of groups to micro-batches depends on their order
    only, so the result is bit-identical however groups are split into calls. If the loss needs the whole mini-batch
    (m2po), groups wait for `close`, which runs one more forward pass. With several ranks, each rank receives all groups
    and computes its share of the tokens; `close` sums over ranks.

    `groups` is the number of added groups, and `value_estimates` the critic's estimates for them.
    """

    def __init__(self, policy: LogprobModel, settings: OptimizerConfig) -> None:
        for parameter in trainable(policy.model):
            parameter.grad = None
        self._reduces_once = reduces_once(policy.model, policy.device)
        if self._reduces_once:
            discard_unreduced_gradients(policy.model)
        self.groups, self.loss = 0, 0.0
        self.value_estimates: list[ValueEstimate] = []
        self.importance_ratios = ImportanceRatioAccumulator(settings.importance, settings.importance_bound)
        self.clipping = ClippingAccumulator()
        self._entropy = 0.0
        self._reference_kl: float | None = None
        self._policy, self._settings = policy, settings
        self._micro_batcher = MicroBatcher(settings.tokens_per_microbatch, policy.layout, policy.ranks)
        self._loss_function: PolicyLoss = LOSSES.get(settings.loss)(settings)
        self._waiting: list[PromptRow] = []
        """Rows that wait for `close`, if the loss needs the whole mini-batch."""

    @property
    def entropy(self) -> float:
        """Mean entropy of the policy in nats per token."""
        return self._entropy / self.importance_ratios.tokens

    @property
    def reference_kl(self) -> float | None:
        """Mean k3 estimate in nats per token; None without a reference policy."""
        return None if self._reference_kl is None else self._reference_kl / self.importance_ratios.tokens

    def add(self, rows: Sequence[PromptRow], groups: int) -> None:
        """Accumulate the gradient of the next `groups` groups, whose trained completions are `rows`."""
        self.groups += groups
        if self._loss_function.needs_whole_mini_batch:
            self._waiting += rows
            return
        for micro_batch in self._micro_batcher.add(rows):
            self._backward(micro_batch)

    def close(self, normalizer: int) -> None:
        """Accumulate the remaining rows and divide loss and gradient by `normalizer`."""
        if self._waiting:
            self._loss_function.start_tokens(self._waiting_tokens())
            for micro_batch in self._micro_batcher.add(self._waiting):
                self._backward(micro_batch)
        remaining = self._micro_batcher.flush()  # at least one micro-batch, if any rows were added
        for number, micro_batch in enumerate(remaining, 1):
            self._backward(micro_batch, is_last=number == len(remaining))
        if not self._policy.ranks.is_single:
            self._sum_over_ranks()
        self.loss /= normalizer
        gradients = [p.grad for p in trainable(self._policy.model) if p.grad is not None]
        if gradients:
            divide_all(gradients, normalizer)

    def _backward(self, micro_batch: MicroBatch, is_last: bool = False) -> None:
        """Add the gradient, loss and statistics of one micro-batch."""
        model, device, settings = self._policy.model, self._policy.device, self._settings
        if self._reduces_once:
            model.set_requires_gradient_sync(is_last)
        batch = micro_batch.to(device)
        real = batch.tokens != NO_TOKEN
        logprobs, entropies = self._policy.score(batch, entropy_gradient=settings.entropy_coef > 0)
        old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
        factors = self._importance_factors(old, batch.behaviour_logprobs)
        weights = batch.weights * factors
        tokens = LossTokens(logprobs, old, batch.behaviour_logprobs, weights, batch.owners)
        loss, statistics = self._loss_function.token_loss(tokens)
        if batch.reference_logprobs is not None and settings.reference_kl in IN_LOSS:
            divergences = IN_LOSS[settings.reference_kl](logprobs, batch.reference_logprobs)
            loss = loss + (batch.kl_weights * factors * divergences).sum()
        if settings.entropy_coef:
            loss = loss - (batch.entropy_weights * entropies).where(real, 0.0).sum()
        if statistics is not None:
            self.clipping.add(*(values[real] for values in statistics))
        loss.backward()
        entropies = entropies.detach()
        self.loss += loss.item()
        self.importance_ratios.add(logprobs.detach()[real], batch.behaviour_logprobs[real])
        self._entropy += float(entropies[real].double().sum())
        if batch.reference_logprobs is not None:
            divergences = k3(logprobs.detach(), batch.reference_logprobs)[real]
            self._reference_kl = (self._reference_kl or 0.0) + float(divergences.double().sum())

    def _importance_factors(self, old: torch.Tensor, behaviour: torch.Tensor) -> torch.Tensor:
        mode, bound = self._settings.importance, self._settings.importance_bound
        return importance_factors((old - behaviour).exp(), mode, bound)

    def _waiting_tokens(self) -> LossTokens:
        """Return all waiting tokens, on the CPU."""
        waiting = [completion for row in self._waiting for completion in row.completions]
        current = self._policy.logprobs(self._waiting, self._settings.tokens_per_microbatch)
        pairs = zip(waiting, current, strict=True)
        old = torch.cat([own if c.old_logprobs is None else torch.tensor(c.old_logprobs) for c, own in pairs])
        behaviour = torch.cat([torch.tensor(c.behaviour_logprobs) for c in waiting])
        lengths = torch.tensor([len(c.token_ids) for c in waiting])
        weights = torch.tensor([c.weight for c in waiting]).repeat_interleave(lengths)
        owners = torch.arange(len(waiting)).repeat_interleave(lengths)
        weights = weights * self._importance_factors(old, behaviour)
        return LossTokens(torch.cat(current), old, behaviour, weights, owners)

    def _sum_over_ranks(self) -> None:
        """Sum loss and statistics in rank order, so that all ranks get the same bits. Gradients are already summed."""
        own = (self.loss, self._entropy, self._reference_kl, self.importance_ratios, self.clipping)
        parts = self._policy.ranks.all_gather(own)
        self.loss = sum(part[0] for part in parts)
        self._entropy = sum(part[1] for part in parts)
        known = [part[2] for part in parts if part[2] is not None]
        self._reference_kl = sum(known) if known else None
        self.importance_ratios, self.clipping = parts[0][3:]
        for part in parts[1:]:
            self.importance_ratios += part[3]
            self.clipping += part[4]


@dataclass(frozen=True, slots=True)
class MiniBatchResult:
    """The result of one mini-batch: an optimizer step was `taken`, or `skipped` because a value is not finite.

    Both are False if the gradient is zero.
    """

    loss: float
    grad_norm: float
    taken: bool
    skipped: bool
    gradient: GradientAccumulator
    critic_loss: float


def summarize_update(results: Sequence[MiniBatchResult], learning_rate: float) -> UpdateStats:
    """Return the statistics of a batch's mini-batches; `learning_rate` is that of the first optimizer step."""
    finite = [result for result in results if not result.skipped]
    first = next((result.gradient for result in results if result.gradient.importance_ratios.tokens), None)
    clipping = ClippingAccumulator()
    for result in results:
        clipping += result.gradient.clipping
    value_estimates = [estimate for result in results for estimate in result.gradient.value_estimates]
    return UpdateStats(
        loss=_mean([result.loss for result in finite]) if results else 0.0,
        grad_norm=_mean([result.grad_norm for result in finite]) if results else 0.0,
        learning_rate=learning_rate,
        logprob_gap=None if first is None else first.importance_ratios.logprob_gap,
        importance_ratios=None if first is None else first.importance_ratios.stats,
        optimizer_steps=sum(result.taken for result in results),
        skipped_steps=sum(result.skipped for result in results),
        entropy=None if first is None else first.entropy,
        clipping=clipping.stats,
        reference_kl=None if first is None else first.reference_kl,
        critic=critic_stats([result.critic_loss for result in results], value_estimates),
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
