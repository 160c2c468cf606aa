"""Completions that were cut off at max_new_tokens: their rewards say little of what they would have been.

Both remedies are DAPO's (Yu et al., 2025): overlong filtering, and soft overlong punishment.
"""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.config import CreditConfig
from marl_ray.core.episode import Completion


def is_masked(completion: Completion, credit: CreditConfig) -> bool:
    """Whether it has no part in the loss. Its return remains in its siblings' baseline."""
    return credit.overlong == "mask" and completion.finish_reason == "length"


def penalize_overlong(
    returns: Sequence[float], completions: Sequence[Completion], max_new_tokens: int, credit: CreditConfig
) -> list[float]:
    """What siblings are credited with [G], less the penalty for length: an agent's own, as its length is."""
    if credit.overlong != "penalty":
        return list(returns)
    return [
        value - credit.overlong_penalty * excess(completion, max_new_tokens, credit.overlong_buffer)
        for value, completion in zip(returns, completions, strict=True)
    ]


def excess(completion: Completion, max_new_tokens: int, buffer: int) -> float:
    """1 for what was cut off; else how much of the last `buffer` tokens is used, from 0 to 1."""
    if completion.finish_reason == "length":
        return 1.0
    used = len(completion.token_ids) - (max_new_tokens - buffer)
    return max(used, 0) / buffer if buffer else 0.0
