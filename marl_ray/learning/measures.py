"""What is said of an update besides its loss: sums over tokens, which micro-batches are added to."""

from __future__ import annotations

import torch

from marl_ray.core.batch import ClippingStats


class ClippingAccumulator:
    """How far the policy is from where the ratios of its loss start."""

    def __init__(self) -> None:
        self.tokens = 0
        self._stopped = self._ratios = self._kl = self._max = 0.0

    def add(self, log_ratios: torch.Tensor, ratios: torch.Tensor, stopped: torch.Tensor) -> None:
        """Of the same tokens, [S], without padding: log pi - log old, the ratios of the loss, and which of them have no
        gradient. In float64, where no ratio that is met overflows."""
        if not len(log_ratios):
            return
        own = log_ratios.double()
        sums = [stopped.sum().double(), ratios.double().sum(), (own.exp() - 1 - own).sum(), ratios.double().max()]
        counted, total, kl, most = torch.stack(sums).tolist()  # at once: the device is waited for once
        self.tokens += len(log_ratios)
        self._stopped += counted
        self._ratios += total
        self._kl += kl
        self._max = max(self._max, most)

    def __iadd__(self, other: ClippingAccumulator) -> ClippingAccumulator:
        """Its tokens too."""
        self.tokens += other.tokens
        self._stopped += other._stopped
        self._ratios += other._ratios
        self._kl += other._kl
        self._max = max(self._max, other._max)
        return self

    @property
    def stats(self) -> ClippingStats | None:
        """None without a token."""
        if not self.tokens:
            return None
        return ClippingStats(self._stopped / self.tokens, self._ratios / self.tokens, self._max, self._kl / self.tokens)
