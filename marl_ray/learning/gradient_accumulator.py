"""The gradient of one mini-batch, which grows as its groups come."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from marl_ray.config import OptimizerConfig
from marl_ray.learning import losses
from marl_ray.learning.critic import ValueEstimate
from marl_ray.learning.importance import ImportanceRatioAccumulator, importance_factors
from marl_ray.learning.logprobs import token_logprobs_and_entropies
from marl_ray.learning.measures import ClippingAccumulator
from marl_ray.learning.micro_batches import NO_TOKEN, MicroBatch, MicroBatcher, PromptRow
from marl_ray.learning.policy_model import LogprobModel, compute_in, token_logits
from marl_ray.models.lora import trainable


class GradientAccumulator:
    """The gradient of a mini-batch's loss, in the policy's parameters, which it clears first.

    The loss is a sum over the tokens of all completions (`marl_ray.learning.losses`), over the mini-batch's normalizer;
    with loss policy_gradient it is minus the sum of weight * sum_k factor_k * log pi(token_k | prompt, tokens before
    k). It is linear in the groups, so they need not all be known: their gradients add up, and are scaled once by
    `close`. Which groups share a micro-batch follows from their order alone, and those that fill none wait for the
    next: in whatever portions the groups come, the bits are the same.

    With loss m2po all groups wait for `close`: which tokens are left out depends on all of them. That costs a forward
    pass more, and the time in which it could have computed while others were played; where tokens are stale, batches
    are there before they are needed.

    Ranks that share the policy have one each, and hear of all groups. Each computes its share of the tokens, and
    `close` adds up what they found.

    groups: how many were added; loss: their sum, and after `close` the loss. Of the tokens that were learned from,
    agreement: of learner and sampler; distance: from where the loss's ratios start. valued: what a critic has said of
    the groups, for the gradient of its own loss, which is not computed here.
    """

    def __init__(self, policy: LogprobModel, settings: OptimizerConfig) -> None:
        for parameter in trainable(policy.model):
            parameter.grad = None
        self.groups = 0
        self.loss = 0.0
        self.value_estimates: list[ValueEstimate] = []
        self.importance_ratios = ImportanceRatioAccumulator(settings.importance, settings.importance_bound)
        self.clipping = ClippingAccumulator()
        self._entropy = 0.0
        self._reference_kl: float | None = None
        self._policy, self._settings = policy, settings
        self._cutter = MicroBatcher(settings.microbatch_tokens, policy.layout, policy.ranks)
        self._waiting: list[PromptRow] = []
        """Of m2po: what has to be known first."""
        self._reach = 0.0
        """Of m2po: how far from 0 a token's log-ratio may be."""

    @property
    def entropy(self) -> float:
        """Mean of the policy's entropies, nats a token. There has to be a token."""
        return self._entropy / self.importance_ratios.tokens

    @property
    def reference_kl(self) -> float | None:
        """Mean of k3, nats a token; None without a reference."""
        return None if self._reference_kl is None else self._reference_kl / self.importance_ratios.tokens

    def add(self, rows: Sequence[PromptRow], groups: int) -> None:
        """What is learned from of the next so many groups, in their order."""
        self.groups += groups
        if self._settings.loss == "m2po":
            self._waiting += rows
            return
        for micro_batch in self._cutter.add(rows):
            self._backward(micro_batch)

    def close(self, normalizer: int) -> None:
        """There are no more groups: compute what waited, and scale."""
        if self._waiting:
            self._reach = self._second_moment_reach()
            for micro_batch in self._cutter.add(self._waiting):
                self._backward(micro_batch)
        for micro_batch in self._cutter.flush():
            self._backward(micro_batch)
        if not self._policy.ranks.is_single:
            self._add_up()
        self.loss /= normalizer
        for parameter in trainable(self._policy.model):
            if parameter.grad is not None:
                parameter.grad.div_(normalizer)

    def _add_up(self) -> None:
        """What all ranks found, in their order, so that each has the same bits. Gradients are summed already."""
        parts = self._policy.ranks.all_gather(
            (self.loss, self._entropy, self._reference_kl, self.importance_ratios, self.clipping)
        )
        self.loss = sum(part[0] for part in parts)
        self._entropy = sum(part[1] for part in parts)
        known = [part[2] for part in parts if part[2] is not None]
        self._reference_kl = sum(known) if known else None
        _, _, _, self.importance_ratios, self.clipping = parts[0]
        for _, _, _, agreement, distance in parts[1:]:
            self.importance_ratios += agreement
            self.clipping += distance

    def _second_moment_reach(self) -> float:
        """Of all tokens that wait."""
        sampled = [completion.behaviour_logprobs for row in self._waiting for completion in row.completions]
        ours = self._policy.logprobs(self._waiting, self._settings.microbatch_tokens)
        ratios = [own - torch.tensor(logprobs) for own, logprobs in zip(ours, sampled, strict=True)]
        return losses.second_moment_reach(torch.cat(ratios), self._settings.m2_bound)

    def _backward(self, micro_batch: MicroBatch) -> None:
        model, device, settings = self._policy.model, self._policy.device, self._settings
        batch = micro_batch.to(device)
        real = batch.tokens != NO_TOKEN
        with compute_in(self._policy.dtype, device):
            logits = token_logits(model, batch)
            logprobs, entropies = token_logprobs_and_entropies(logits, batch.tokens, self._policy.temperature)
            del logits  # as wide as the vocabulary; backward lets go of them as soon as it can
            old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
            ratios = (old - batch.behaviour_logprobs).exp()
            factors = importance_factors(ratios, settings.importance, settings.importance_bound)
            if settings.loss == "gspo":
                factors = factors / losses.lengths_of(batch.owners)[batch.owners]
            loss = self._loss(logprobs, old, batch.weights * factors, batch, real)
            if batch.reference_logprobs is not None and settings.reference_kl == "k3_in_loss":
                loss = loss + (batch.kl_weights * factors * losses.k3(logprobs, batch.reference_logprobs)).sum()
        loss.backward()
        self.loss += loss.item()
        self.importance_ratios.add(logprobs.detach()[real], batch.behaviour_logprobs[real])
        self._entropy += float(entropies[real].double().sum())
        if batch.reference_logprobs is not None:
            divergences = losses.k3(logprobs.detach(), batch.reference_logprobs)[real]
            self._reference_kl = (self._reference_kl or 0.0) + float(divergences.double().sum())

    def _loss(
        self, logprobs: torch.Tensor, old: torch.Tensor, weights: torch.Tensor, batch: MicroBatch, real: torch.Tensor
    ) -> torch.Tensor:
        """Of a micro-batch's tokens, whose weights have their factors; `distance` is told of the `real` ones' ratios,
        those that are no padding."""
        settings = self._settings
        if settings.loss == "policy_gradient":
            return losses.policy_gradient(logprobs, weights)
        if settings.loss == "m2po":
            log_ratios = logprobs - batch.behaviour_logprobs
            stopped = log_ratios.detach().abs() > self._reach
            self.clipping.add(log_ratios.detach()[real], log_ratios.detach().exp()[real], stopped[real])
            return losses.second_moment(log_ratios, weights, self._reach)
        if settings.loss == "clip":
            ratios = losses.token_ratios(logprobs, old)
        else:
            ratios = losses.sequence_ratios(logprobs, old, batch.owners)
        low, high = settings.clip_range
        stopped = losses.is_clipped(ratios.detach(), weights, low, high)
        self.clipping.add((logprobs.detach() - old)[real], ratios.detach()[real], stopped[real])
        return losses.clipped(ratios, weights, low, high)
