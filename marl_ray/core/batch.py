"""What a learner gets, and what it says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from marl_ray.core.episode import Completion


@dataclass(frozen=True, slots=True)
class CriticSample:
    """What a critic learns from at one node, states as token ids.

    `rewards` [G] are those of the node alone; `successors` [G] the states that each completion led to: one for each
    joint action that holds it, none where the episode was over.
    """

    state: tuple[int, ...]
    rewards: tuple[float, ...]
    successors: tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """One agent's G completions of one prompt at one node, each once, with what is credited to them.

    `returns` [G] are what siblings are ranked by; `weights` [G] are the factors of their summed log-probabilities in
    the loss before the mini-batch's normalizer, 0 for those that have no gradient. So a group can be learned from
    before it is known how many there are. `baselines` [G] are what the estimator takes from the returns where it looks
    beyond siblings (`marl_ray.credit.returns.baselines`), else empty. With a critic, `experience` is what it learns from, and
    weights are the factors of advantages that are to come.
    """

    turn: int
    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    returns: tuple[float, ...]
    weights: tuple[float, ...]
    baselines: tuple[float, ...] = ()
    critic_sample: CriticSample | None = None


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """The groups of one optimizer step. Their weights are to be divided by `normalizer`: the number of groups, or of
    all their tokens where `loss_aggregation` is token_mean."""

    groups: tuple[Group, ...]
    normalizer: int


@dataclass(frozen=True, slots=True)
class Batch:
    """All that is learned from of one agent in step number `step` (from 0): one optimizer step a mini-batch. A
    learner's is of all agents that play with its policy."""

    step: int
    mini_batches: tuple[MiniBatch, ...]


class TrainingHistory(Protocol):
    """What one policy's learner can be made from again: its state after batch s is a function of these."""

    def checkpoint(self) -> tuple[int, str] | None:
        """The newest complete one: how many batches it has seen, and the policy's folder in it. None: the base model
        is all there is."""

    def batch(self, step: int) -> Batch:
        """The policy's batch of step number `step`. Raises UserError where it is not there any more."""


@dataclass(frozen=True, slots=True)
class ImportanceRatioStats:
    """Importance ratios pi(token) / behaviour(token) of one update, over the tokens that were learned from."""

    mean: float
    max: float
    cut: float
    """Share of tokens whose ratio was beyond the bound."""
    effective_sample_size: float
    """(sum of ratios)^2 / (tokens * sum of squared ratios), before they are cut: 1 where all are equal."""


@dataclass(frozen=True, slots=True)
class ClippingStats:
    """How far the optimizer steps of one batch took the policy from where the loss measures it from, over the tokens
    that were learned from. With loss gspo, a token's ratio is its completion's."""

    clip_fraction: float
    """Share of tokens that had no gradient for it."""
    ratio_mean: float
    ratio_max: float
    kl: float
    """Of the policy from what it was, nats a token: the mean of r - 1 - log r over tokens' own ratios r."""


@dataclass(frozen=True, slots=True)
class CriticStats:
    """What a critic did in one update."""

    loss: float
    """Mean squared error, before its coefficient; a mean over mini-batches."""
    value: float
    """Mean over groups, before the update."""
    explained_variance: float | None
    """Of the targets, by values before the update; None where targets do not differ."""


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What one update did; loss and norm are means over its mini-batches, 0 where there is no gradient."""

    loss: float
    grad_norm: float
    learning_rate: float
    logprob_gap: float | None
    """Mean absolute difference between the learner's and the sampler's log-probabilities, nats a token,
    before the update. It is about 0 when both hold the same weights; None if nothing was computed."""
    importance_ratios: ImportanceRatioStats | None
    """Before the update; None if nothing was computed."""
    optimizer_steps: int
    """Those taken. A mini-batch in which every group's returns are equal has no gradient, and takes none."""
    skipped_steps: int
    """Optimizer steps left out for a loss or gradient that is not finite."""
    entropy: float | None = None
    """Mean entropy of the policy at the tokens that were learned from, at the sampling temperature, nats a token,
    before the update; None if nothing was computed."""
    clipping: ClippingStats | None = None
    """Of losses that have ratios; None if nothing was computed."""
    reference_kl: float | None = None
    """KL divergence from the reference policy at the tokens that were learned from, nats a token, before the update;
    None without a reference, or if nothing was computed."""
    critic: CriticStats | None = None
    """None without a critic, or without a group."""
