"""Gradient and statistics of one mini-batch, accumulated while its groups arrive, and the statistics of an update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from marl_ray.config import OptimizerConfig
from marl_ray.core.batch import ClippingStats, ImportanceRatioStats, UpdateStats
from marl_ray.learning import LOSSES
from marl_ray.learning.critic import ValueEstimate, critic_stats
from marl_ray.learning.importance import exceeds_bound, importance_factors
from marl_ray.learning.kl_estimates import k2, k3
from marl_ray.learning.losses.policy_loss import LossTokens, PolicyLoss
from marl_ray.learning.micro_batches import NO_TOKEN, MicroBatch, MicroBatcher
from marl_ray.learning.policy_model import LogprobModel
from marl_ray.learning.prompt_rows import PromptRow
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
        self._merge(tokens, values, largest)

    def __iadd__(self, other: Self) -> Self:
        self._merge(other.tokens, other._sums, other._max)
        return self

    def _merge(self, tokens: int, sums: Sequence[float], maximum: float) -> None:
        self.tokens += tokens
        for place, value in enumerate(sums):
            self._sums[place] += value
        self._max = max(self._max, maximum)


class ImportanceRatioAccumulator(_TokenSums):
    """Statistics of the importance ratios pi(token) / behaviour(token) of at least one trained token."""

    def __init__(self, mode: str, bound: float) -> None:
        super().__init__(4)
        self._mode = mode
        self._bound = bound

    def add(self, logprobs: torch.Tensor, behaviour_logprobs: torch.Tensor) -> None:
        """Add tokens given by their log-probabilities, both [S] without padding."""
        if not len(logprobs):
            return
        differences = logprobs.detach().double() - behaviour_logprobs.double()
        ratios = differences.exp()
        beyond = exceeds_bound(ratios, self._mode, self._bound)
        sums = [differences.abs().sum(), ratios.sum(), ratios.square().sum(), beyond.sum().double()]
        self._add(len(logprobs), sums, ratios.max())

    @property
    def logprob_gap(self) -> float:
        """Mean absolute difference of log-probabilities in nats per token."""
        return self._sums[0] / self.tokens

    @property
    def stats(self) -> ImportanceRatioStats:
        _, total, squares, beyond = self._sums
        # The effective sample size, (sum w)^2 / sum w^2 (Kish, 1965), as a share of the tokens.
        effective = 0.0
        if squares:
            effective = total * total / (self.tokens * squares)
        return ImportanceRatioStats(total / self.tokens, self._max, beyond / self.tokens, effective)


class ClippingAccumulator(_TokenSums):
    """Statistics of the ratios in the loss, from the policy at which they are 1: KL and fraction of clipped tokens."""

    def __init__(self) -> None:
        super().__init__(3)

    def add(self, log_ratios: torch.Tensor, ratios: torch.Tensor, clipped: torch.Tensor) -> None:
        """Add tokens given by log pi - log old, the ratio in the loss, and whether their gradient is zero; all [S]."""
        if not len(log_ratios):
            return
        log_ratios = log_ratios.double()
        ratios = ratios.double()
        # r - 1 - log r is an estimate of KL(old || pi) that is never negative (k3 of Schulman, 2020).
        divergences = log_ratios.exp() - 1 - log_ratios
        self._add(len(log_ratios), [clipped.sum().double(), ratios.sum(), divergences.sum()], ratios.max())

    @property
    def stats(self) -> ClippingStats | None:
        if not self.tokens:
            return None
        clipped, ratios, kl = self._sums
        return ClippingStats(clipped / self.tokens, ratios / self.tokens, self._max, kl / self.tokens)


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
        self.groups = 0
        self.loss = 0.0
        self.value_estimates: list[ValueEstimate] = []
        self.importance_ratios = ImportanceRatioAccumulator(settings.importance, settings.importance_bound)
        self.clipping = ClippingAccumulator()
        self._entropy = 0.0
        self._reference_kl: float | None = None
        self._policy = policy
        self._settings = settings
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
        if self._reference_kl is None:
            return None
        return self._reference_kl / self.importance_ratios.tokens

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
        settings = self._settings
        if self._reduces_once:
            self._policy.model.set_requires_gradient_sync(is_last)
        batch = micro_batch.to(self._policy.device)
        real = batch.tokens != NO_TOKEN
        logprobs, entropies = self._policy.score(batch, entropy_gradient=settings.entropy_coef > 0)
        old = batch.old_logprobs
        if old is None:  # the first mini-batch of a batch, or a loss that compares with the current policy
            old = logprobs.detach()
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
            log_ratios, ratios, clipped = statistics
            self.clipping.add(log_ratios[real], ratios[real], clipped[real])
        loss.backward()

        self.loss += loss.item()
        known = logprobs.detach()
        self.importance_ratios.add(known[real], batch.behaviour_logprobs[real])
        self._entropy += float(entropies.detach()[real].double().sum())
        if batch.reference_logprobs is not None:
            divergences = k3(known, batch.reference_logprobs)[real]
            self._reference_kl = (self._reference_kl or 0.0) + float(divergences.double().sum())

    def _importance_factors(self, old: torch.Tensor, behaviour: torch.Tensor) -> torch.Tensor:
        ratios = (old - behaviour).exp()
        return importance_factors(ratios, self._settings.importance, self._settings.importance_bound)

    def _waiting_tokens(self) -> LossTokens:
        """Return all waiting tokens, on the CPU."""
        waiting = [completion for row in self._waiting for completion in row.completions]
        current = self._policy.logprobs(self._waiting, self._settings.tokens_per_microbatch)
        before = []
        for completion, logprobs in zip(waiting, current, strict=True):
            if completion.old_logprobs is None:
                before.append(logprobs)
            else:
                before.append(torch.tensor(completion.old_logprobs))
        old = torch.cat(before)
        behaviour = torch.cat([torch.tensor(c.behaviour_logprobs) for c in waiting])
        lengths = torch.tensor([len(c.token_ids) for c in waiting])
        weights = torch.tensor([c.weight for c in waiting]).repeat_interleave(lengths)
        owners = torch.arange(len(waiting)).repeat_interleave(lengths)
        weights = weights * self._importance_factors(old, behaviour)
        return LossTokens(torch.cat(current), old, behaviour, weights, owners)

    def _sum_over_ranks(self) -> None:
        """Sum loss and statistics in rank order, so that all ranks get the same bits. Gradients are already summed."""
        mine = (self.loss, self._entropy, self._reference_kl, self.importance_ratios, self.clipping)
        of_ranks = self._policy.ranks.all_gather(mine)
        losses, entropies, divergences, importance_ratios, clippings = zip(*of_ranks, strict=True)
        self.loss = sum(losses)
        self._entropy = sum(entropies)
        known = [divergence for divergence in divergences if divergence is not None]
        self._reference_kl = None  # a rank without rows has no divergence
        if known:
            self._reference_kl = sum(known)
        self.importance_ratios, *others = importance_ratios
        for other in others:
            self.importance_ratios += other
        self.clipping, *others = clippings
        for other in others:
            self.clipping += other


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
    clipping = ClippingAccumulator()
    value_estimates: list[ValueEstimate] = []
    for result in results:
        clipping += result.gradient.clipping
        value_estimates += result.gradient.value_estimates
    finite = [result for result in results if not result.skipped]
    if finite:
        loss = sum(result.loss for result in finite) / len(finite)
        grad_norm = sum(result.grad_norm for result in finite) / len(finite)
    elif results:
        loss = grad_norm = math.nan
    else:
        loss = grad_norm = 0.0
    stats = UpdateStats(
        loss=loss,
        grad_norm=grad_norm,
        learning_rate=learning_rate,
        logprob_gap=None,
        importance_ratios=None,
        optimizer_steps=sum(result.taken for result in results),
        skipped_steps=sum(result.skipped for result in results),
        clipping=clipping.stats,
        critic=critic_stats([result.critic_loss for result in results], value_estimates),
    )
    # Later mini-batches compare the sampler with a policy that the first optimizer step has moved.
    for result in results:
        before = result.gradient
        if before.importance_ratios.tokens:
            return replace(
                stats,
                logprob_gap=before.importance_ratios.logprob_gap,
                importance_ratios=before.importance_ratios.stats,
                entropy=before.entropy,
                reference_kl=before.reference_kl,
            )
    return stats
