"""Functions of ratios that several losses share. `weights` [S] are the factors of the tokens in the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def token_ratios(logprobs: Tensor, old: Tensor) -> Tensor:
    """Return pi / old of each token, [S]."""
    return (logprobs - old).exp()


def clipped_loss(ratios: Tensor, weights: Tensor, low: float, high: float) -> Tensor:
    """Return -sum(min(ratio * weight, clip(ratio, low, high) * weight))."""
    unbounded = ratios * weights
    bounded = ratios.clamp(low, high) * weights
    return -unbounded.minimum(bounded).sum()


def is_clipped(ratios: Tensor, weights: Tensor, low: float, high: float) -> Tensor:
    """Return a mask of the tokens without a gradient in `clipped_loss`, [S]: ratios beyond the bound to which the
    weight pushes them."""
    too_likely = (ratios > high) & (weights > 0)
    too_unlikely = (ratios < low) & (weights < 0)
    return too_likely | too_unlikely


def no_token(ratios: Tensor) -> Tensor:
    """Return a mask without a token, [S], for a loss in which all tokens keep their gradients."""
    return ratios < 0  # a ratio of probabilities never is


def lengths_of(owners: Tensor) -> Tensor:
    """Return the number of tokens of each completion."""
    return owners.bincount().clamp(min=1)
