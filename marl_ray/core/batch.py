"""Learner inputs (groups, mini-batches, batches and the queue of groups) and learner outputs (update statistics)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from marl_ray.core.concurrency import Condition, now
from marl_ray.core.episode import AgentCall, Completion


@dataclass(frozen=True, slots=True)
class CriticSample:
    """The critic's training data at one node, with states as token ids. `rewards` [G] are the node's own rewards.
    `successors` [G] are the states after each completion: one per joint action that contains it, none at the end."""

    state: tuple[int, ...]
    rewards: tuple[float, ...]
    successors: tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """The calls of one agent at one node that are compared with each other, with the returns credited to them.

    A group has G siblings: G completions of one prompt, or G runs of a program with all calls of the agent. Returns,
    weights and inputs have one entry per call, and the calls of one sibling have the same ones.

    `returns` are the values that the estimator compares. `weights` multiply the summed log-probabilities in the loss,
    before the mini-batch's normalizer, so that the number of groups may still be unknown. `inputs` are further values
    that the estimator compares, by the fields of `marl_ray.credit.estimators.base.SiblingValues`.

    With a critic, `critic_sample` is its training data, and `weights` are the loss shares only, which the learner
    multiplies by the critic's advantages.

    Example: two completions, of which the first has the better return.
        >>> from marl_ray.core.episode import sibling_calls
        >>> calls = sibling_calls((1, 2), [Completion((3,), "", (-0.5,), "stop", ((0, 1),))] * 2)
        >>> Group(0, calls, returns=(1.0, 0.0), weights=(0.25, -0.25)).siblings
        (0, 1)
    """

    turn: int
    calls: tuple[AgentCall, ...]
    returns: tuple[float, ...]
    weights: tuple[float, ...] = ()
    inputs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    critic_sample: CriticSample | None = None

    @property
    def agent(self) -> int:
        """The number of the agent."""
        return self.calls[0].agent

    @property
    def siblings(self) -> tuple[int, ...]:
        """The number of each call's sibling."""
        return tuple(call.sibling for call in self.calls if call.sibling is not None)

    @property
    def size(self) -> int:
        """G, the number of siblings."""
        return len(set(self.siblings))

    @property
    def completions(self) -> tuple[Completion, ...]:
        return tuple(call.completion for call in self.calls)

    @property
    def prompts(self) -> tuple[tuple[int, ...], ...]:
        """The token ids of each call's prompt."""
        return tuple(call.prompt_ids for call in self.calls)

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The token ids of the first prompt, which is the only one unless a program makes the calls."""
        return self.calls[0].prompt_ids

    def by_prompt(self) -> list[Group]:
        """Return the group as groups of one prompt, without weights: itself, or one group per call of a program."""
        if all(call.branch == 0 for call in self.calls):
            return [self]
        # Equal prompts of a program's calls are not joined: rounding would then depend on the other calls.
        parts: list[Group] = []
        for call, value in zip(self.calls, self.returns, strict=True):
            parts.append(Group(self.turn, (call,), (value,)))
        return parts


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
        self.most_waiting = 0
        """Largest number of groups that the learner found in `get`."""
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
        # The learner computes gradients while the rollout goes on.
        self._condition.notify_all()

    def close(self, batch: Batch) -> None:
        """Make the complete batch available; no group follows."""
        self._batch = batch
        self._condition.notify_all()

    async def get(self, start: int) -> Sequence[Group]:
        """Return the groups from position `start` on, as soon as there is one; none if the queue is closed first."""
        await self._wait_for(lambda: len(self._groups) > start or self.closed)
        # Groups stay in the list: a learner that restarts reads them again.
        groups = self._groups[start:]
        self.most_waiting = max(self.most_waiting, len(groups))
        return groups

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
