"""GSPO: Zheng et al., 2025, "Group sequence policy optimization"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl_ray.credit.requirements import Requirements
from marl_ray.learning.losses.clip import TokenClip
from marl_ray.learning.losses.policy_loss import ClipOptions, LossRatios, LossTokens
from marl_ray.learning.losses.ratios import lengths_of

if TYPE_CHECKING:
    from torch import Tensor


class SequenceClip(TokenClip):
    """The loss `gspo`: as `clip`, with one ratio per completion, (pi / old)^(1 / length), averaged over its tokens."""

    requirements = Requirements(several_optimizer_steps=True, loss_aggregation="sequence_sum")
    defaults = ClipOptions(clip_low=3e-4, clip_high=4e-4)  # the authors'

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        lengths = lengths_of(tokens.owners)[tokens.owners]
        ratios = sequence_ratios(tokens.logprobs, tokens.old_logprobs, tokens.owners)
        return self._clipped(tokens, ratios, tokens.weights / lengths)


def sequence_ratios(logprobs: Tensor, old: Tensor, owners: Tensor) -> Tensor:
    """Return the ratio of each token's completion, (pi / old)^(1 / length), [S]. `owners` [S] number the completions
    from 0.

    The gradient of each entry is that of the token's own log-probability (the paper's GSPO-token), which has the same
    value and, summed over a completion, the same gradient.
    """
    log_ratios = (logprobs - old).detach()
    sums = logprobs.new_zeros(int(owners.max()) + 1).index_add(0, owners, log_ratios)
    means = sums / lengths_of(owners)
    one = (logprobs - logprobs.detach()).exp()  # with the gradient of the log-probability
    return means.exp()[owners] * one
