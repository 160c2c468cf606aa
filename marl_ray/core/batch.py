"""What a learner gets, and what it says of it."""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.core.tree import Completion


@dataclass(frozen=True, slots=True)
class Group:
    """One agent's G completions of one prompt at one node, each once, with what is credited to them.

    `returns` [G] are what siblings are ranked by; `weights` [G] are the factors of their summed log-probabilities in
    the loss, 0 for those that have no gradient.
    """

    turn: int
    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    returns: tuple[float, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """All that one agent's learner needs for step number `step` (from 0): one optimizer step a mini-batch."""

    step: int
    mini_batches: tuple[tuple[Group, ...], ...]


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What one update did; loss and norm are means over its mini-batches, 0 where there is no gradient."""

    loss: float
    grad_norm: float
    learning_rate: float
    logprob_gap: float | None
    """Mean absolute difference between the learner's and the sampler's log-probabilities, nats a token,
    before the update. It is about 0 when both hold the same weights; None if nothing was computed."""
    optimizer_steps: int
    """Those taken. A mini-batch in which every group's returns are equal has no gradient, and takes none."""
    skipped_steps: int
    """Optimizer steps left out for a loss or gradient that is not finite."""
