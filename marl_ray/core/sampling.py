"""How a group is sampled, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.core.episode import Completion


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """How a group is sampled. `seed` makes it reproducible whatever else is in flight; `top_k` None: all tokens."""

    num_generations: int
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A prompt's ids and its group of completions; no completions when the prompt is too long."""

    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
