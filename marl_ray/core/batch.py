"""Learner inputs (groups, mini-batches, batches and the queue of groups) and learner outputs (update statistics)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from marl_ray.core.concurrency import Condition, now
from marl_ray.core.episode import Completion


@dataclass(frozen=True, slots=True)
class CriticSample:
    """The critic's training data at one node, with states as token ids. `rewards` [G] are the node's own rewards.
    `successors` [G] are the states after each completion: one per joint action that contains it, none at the end."""

    state: tuple[int, ...]
    rewards: tuple[float, ...]
    successors: tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """One agent's G completions of one prompt at one node, with the returns credited to them.

    `returns` [G] are the values that the estimator compares. `weights` [G] multiply the summed log-probabilities in the
    loss, before the mini-batch's normalizer, so that the number of groups may still be unknown. `baselines` [G] are
    subtracted from the returns by some estimators (`marl_ray.credit.returns`), else empty. With a critic,
    `critic_sample` is its training data, and `weights` are the loss shares only, which the learner multiplies by the
    critic's advantages.

    If siblings are whole programs that call the agent any number of times, `siblings` has the number of the sibling of
    each completion, `prompts` the completion's own prompt, and `prompt_ids` is empty. Completions of one sibling then
    have one return and one weight.

    `agent` is the number of the agent.
    """

    turn: int
    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    returns: tuple[float, ...]
    weights: tuple[float, ...]
    baselines: tuple[float, ...] = ()
    critic_sample: CriticSample | None = None
    siblings: tuple[int, ...] = ()
    prompts: tuple[tuple[int, ...], ...] = ()
    agent: int = 0

    @property
    def size(self) -> int:
        """G, the number of siblings."""
        return len(set(self.siblings)) if self.siblings else len(self.completions)

    def by_prompt(self) -> list[Group]:
        """Return the group as groups whose completions share a prompt: itself, or one group per completion."""
        if not self.siblings:
            return [self]
        weights = self.weights or (0.0,) * len(self.returns)
        parts = zip(self.prompts, self.completions, self.returns, weights, strict=True)
        return [
            replace(
                self,
                prompt_ids=prompt,
                completions=(one,),
                returns=(value,),
                weights=(weight,),
                siblings=(),
                prompts=(),
            )
            for prompt, one, value, weight in parts
        ]


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """The groups of one optimizer step, whose weights are divided by `normalizer`: the number of groups, or with
    `loss_aggregation` token_mean of their tokens."""

    groups: tuple[Group, ...]
    normalizer: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The groups that one agent, or all agents of one policy, learn from in step `step` (from 0)."""

    step: int
    mini_batches: tuple[MiniBatch, ...]


class GroupQueue:
    """An append-only list of one policy's groups in a batch, which its learner can read again from any position.

    The producer puts groups, in the order of gradient accumulation, while other episodes of the batch still run, and
    closes the queue with the complete batch once that batch is in the batch log and the policy may learn from it.
    Reading does not remove groups: a learner that is lost in the middle of a batch starts again with `get(0)`.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        """Number of the batch, from 0."""
        self.waits: list[tuple[float, float]] = []
        """Begin and end of each wait of the learner in `get` and `batch`."""
        self._groups: list[Group] = []
        self._batch: Batch | None = None
        self._condition = Condition()

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def closed(self) -> bool:
        return self._batch is not None

    def put(self, groups: Sequence[Group]) -> None:
        """Append groups of the first mini-batch."""
        self._groups += groups
        self._condition.notify_all()

    def close(self, batch: Batch) -> None:
        """Make the complete batch available; no group follows."""
        self._batch = batch
        self._condition.notify_all()

    async def get(self, start: int) -> Sequence[Group]:
        """Return the groups from position `start` on, as soon as there is one; none if the queue is closed first."""
        await self._wait_for(lambda: len(self._groups) > start or self.closed)
        return self._groups[start:]

    async def batch(self) -> Batch:
        """Return the complete batch, once the queue is closed."""
        await self._wait_for(lambda: self.closed)
        assert self._batch is not None
        return self._batch

    async def _wait_for(self, predicate: Callable[[], bool]) -> None:
        started = now()
        await self._condition.wait_for(predicate)
        self.waits.append((started, now()))


class TrainingHistory(Protocol):
    """The data from which one policy's learner is restored: its state after batch s is a function of this data."""

    def checkpoint(self) -> tuple[int, str] | None:
        """Return the number of batches and the policy's folder of the newest complete checkpoint; None for the base
        model."""

    def batch(self, step: int) -> Batch:
        """Return the policy's batch of step `step`. Raises UserError if the log no longer has it."""


@dataclass(frozen=True, slots=True)
class ImportanceRatioStats:
    """Importance ratios pi(token) / behaviour(token) of one update, over the tokens with a gradient."""

    mean: float
    max: float
    cut: float
    """Share of tokens whose ratio exceeds the bound."""
    effective_sample_size: float
    """(sum of ratios)^2 / (tokens * sum of squared ratios), before truncation: 1 if all ratios are equal."""


@dataclass(frozen=True, slots=True)
class ClippingStats:
    """Ratios of tokens with a gradient (gspo: of their completions) to the policy before the batch."""

    clip_fraction: float
    """Share of tokens whose gradient is clipped to zero."""
    ratio_mean: float
    ratio_max: float
    kl: float
    """KL divergence from that policy, nats per token: the mean of r - 1 - log r over token ratios r."""


@dataclass(frozen=True, slots=True)
class CriticStats:
    """Statistics of one critic update."""

    loss: float
    """Mean squared error before its coefficient; a mean over mini-batches."""
    value: float
    """Mean over groups, before the update."""
    explained_variance: float | None
    """Variance of the targets explained by the values before the update. None if all targets are equal."""


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """Statistics of one update, None where nothing was computed. `loss` and `grad_norm` are means over mini-batches, 0
    without a gradient."""

    loss: float
    grad_norm: float
    learning_rate: float
    logprob_gap: float | None
    """Mean |learner - engine log-probability| before the update, nats per token. About 0 with the same weights."""
    importance_ratios: ImportanceRatioStats | None
    """Before the update."""
    optimizer_steps: int
    """Optimizer steps taken. A mini-batch without a gradient (all weights 0) takes none."""
    skipped_steps: int
    """Optimizer steps skipped because the loss or gradient was not finite."""
    entropy: float | None = None
    """Mean entropy at the tokens with a gradient, at the sampling temperature, before the update, nats per token."""
    clipping: ClippingStats | None = None
    reference_kl: float | None = None
    """KL divergence from the reference policy before the update, nats per token."""
    critic: CriticStats | None = None
