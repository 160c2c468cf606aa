"""How far a sampler's distribution is from the learner's, token by token, and what the loss makes of it.

Tokens may come from older weights, from an engine's coarser arithmetic, or from a distribution cut by top_p or top_k.
The importance ratio rho = pi(token) / behaviour(token), both at the sampling temperature, turns a mean over such tokens
into one over the learner's own. A few large ratios would rule the gradient, so they are bounded by C: truncated
(Ionides 2008, "Truncated importance sampling"; token by token, Yao et al. 2025, "Your efficient RL framework secretly
brings you off-policy RL training"), or left out. ImportanceRatioStats are factors in the loss: no gradient flows through them.
"""

from __future__ import annotations

import torch

from marl_ray.core.batch import ImportanceRatioStats


def importance_factors(ratios: torch.Tensor, how: str, bound: float) -> torch.Tensor:
    """The factor of each token's loss, same shape as `ratios`, without a gradient.

    none: 1; truncate: min(rho, C); mask: rho where 1 / C <= rho <= C, else 0. Raises ValueError for another word.
    """
    ratios = ratios.detach()
    if how == "none":
        return torch.ones_like(ratios)
    if how == "truncate":
        return ratios.clamp(max=bound)
    if how == "mask":
        return ratios.where(~beyond(ratios, how, bound), 0.0)
    raise ValueError(f"importance should be none, truncate or mask, not {how}")


def beyond(ratios: torch.Tensor, how: str, bound: float) -> torch.Tensor:
    """Which ratios are beyond the bound: above C, and with mask below 1 / C too. With none, what truncate would cut."""
    above = ratios > bound
    return above | (ratios < 1 / bound) if how == "mask" else above


class ImportanceRatioAccumulator:
    """How learner and sampler agree on the tokens that were learned from: sums, which micro-batches are added to."""

    def __init__(self, how: str, bound: float) -> None:
        self._how, self._bound = how, bound
        self.tokens = 0
        self._gap = self._sum = self._squares = self._beyond = self._max = 0.0

    def add(self, logprobs: torch.Tensor, behaviour_logprobs: torch.Tensor) -> None:
        """Of the same tokens, [S], without padding. In float64, where no ratio that is met overflows."""
        if not len(logprobs):
            return
        differences = logprobs.detach().double() - behaviour_logprobs.double()
        ratios = differences.exp()
        sums = [differences.abs().sum(), ratios.sum(), ratios.square().sum()]
        sums += [beyond(ratios, self._how, self._bound).sum().double(), ratios.max()]
        gap, total, squares, cut, most = torch.stack(sums).tolist()  # at once: the device is waited for once
        self.tokens += len(logprobs)
        self._gap += gap
        self._sum += total
        self._squares += squares
        self._beyond += cut
        self._max = max(self._max, most)

    def __iadd__(self, other: ImportanceRatioAccumulator) -> ImportanceRatioAccumulator:
        """Its tokens too."""
        self.tokens += other.tokens
        self._gap += other._gap
        self._sum += other._sum
        self._squares += other._squares
        self._beyond += other._beyond
        self._max = max(self._max, other._max)
        return self

    @property
    def logprob_gap(self) -> float:
        """Mean absolute difference of log-probabilities, nats a token. There has to be a token."""
        return self._gap / self.tokens

    @property
    def ratios(self) -> ImportanceRatioStats:
        """There has to be a token."""
        return ImportanceRatioStats(
            mean=self._sum / self.tokens,
            max=self._max,
            cut=self._beyond / self.tokens,
            effective_sample_size=self._sum * self._sum / (self.tokens * self._squares) if self._squares else 0.0,
        )
