"""What an update maximises: pure functions of the tokens of one micro-batch, S of them.

`logprobs` [S] are the policy's, with a gradient. `weights` [S] are what each token counts: its completion's advantage
and share (`marl_ray.credit.groups`) times its importance factor (`marl_ray.learning.importance`); no gradient flows
through them. Sums over micro-batches are divided by the mini-batch's normalizer at the end, so that each of these is
linear in the groups, whatever the aggregation.

The ratios of clip and gspo are pi(token) / old(token), where old is the learner's own policy before the batch's first
optimizer step, computed again, and not the sampler's. What they bound is how far the steps of one batch go. So they are
exactly 1 in its first step; an engine's rounding, which with gspo's narrow bounds would clip by itself, an older
version or a sampler that is cut by top_p clips nothing. What that does to the expectation is made up for by importance
weights of old against the sampler ("Batch size-invariance for policy optimization", Hilton et al., 2022; decoupled in
the same way in AReaL, Fu et al., 2025). The first mini-batch needs no further computation for it, each later one a
forward pass.

m2po's ratios are those of the policy and the sampler: it is the staleness itself that they bound.
"""

from __future__ import annotations

import math

import torch

Tensor = torch.Tensor


def policy_gradient(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Minus the sum of weight * log pi (Williams, 1992)."""
    return -(weights * logprobs).sum()


def token_ratios(logprobs: Tensor, old: Tensor) -> Tensor:
    """pi / old of each token, [S]."""
    return (logprobs - old).exp()


def sequence_ratios(logprobs: Tensor, old: Tensor, owners: Tensor) -> Tensor:
    """GSPO (Zheng et al., 2025, "Group sequence policy optimization"): a completion's ratio to the power 1 / length.

    `owners` [S] number the completions from 0. The ratio stands at each token, [S], and its gradient there is that of
    the token's own log-probability: the paper's GSPO-token, of the same value and, over a completion, gradient.
    """
    sums = torch.zeros(int(owners.max()) + 1, dtype=logprobs.dtype, device=logprobs.device)
    means = sums.index_add(0, owners, (logprobs - old).detach()) / lengths_of(owners)
    return means.exp()[owners] * (logprobs - logprobs.detach()).exp()


def lengths_of(owners: Tensor) -> Tensor:
    """Tokens of each completion."""
    return torch.bincount(owners).clamp(min=1)


def clipped(ratios: Tensor, weights: Tensor, low: float, high: float) -> Tensor:
    """Minus the sum of min(ratio * weight, clip(ratio, low, high) * weight).

    PPO's (Schulman et al., 2017) with bounds of their own on either side: DAPO's clip-higher (Yu et al., 2025).
    """
    return -torch.minimum(ratios * weights, ratios.clamp(low, high) * weights).sum()


def is_clipped(ratios: Tensor, weights: Tensor, low: float, high: float) -> Tensor:
    """Which tokens have no gradient in `clipped`: those whose ratio has gone beyond the bound that their weight pushes
    it to, [S]."""
    return ((ratios > high) & (weights > 0)) | ((ratios < low) & (weights < 0))


def second_moment_reach(log_ratios: Tensor, bound: float) -> float:
    """M2PO (Zheng et al., 2025, "Prosperity before collapse: how far can off-policy RL reach with stale data on
    LLMs?"): the largest |log ratio| that is kept.

    `log_ratios` are of all tokens of a mini-batch, at least one. Those that are furthest from 0 are left out, until the
    mean square of the rest is at most `bound`; those equally far go together. What is returned lies between the last
    kept and the first left out, so that it tells them apart in a second computation too; infinite where all are kept,
    negative where none is.
    """
    distances = log_ratios.double().abs().sort().values
    counts = torch.arange(1, len(distances) + 1, device=distances.device)
    kept = int((distances.square().cumsum(0) / counts <= bound).sum())  # the means only rise
    if kept == len(distances):
        return math.inf
    within = distances[distances < distances[kept]]
    return float(within[-1] + distances[kept]) / 2 if len(within) else -1.0


def second_moment(log_ratios: Tensor, weights: Tensor, reach: float) -> Tensor:
    """Minus the sum of ratio * weight over the tokens within `reach`."""
    kept = log_ratios.detach().abs() <= reach
    return -(log_ratios.where(kept, 0.0).exp() * weights * kept).sum()


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """log pi - log reference of each token, [S]: under pi, its mean is KL(pi || reference).

    This and the next are from Schulman, 2020, "Approximating KL divergence". In the reward, k1 gives the gradient of
    the KL divergence; as a term of the loss it would give none, since the mean of pi's score is 0.
    """
    return logprobs - reference


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """r - 1 - log r with r = reference / pi of each token, [S]: of the same mean, never negative, of less variance.

    As a term of the loss it is GRPO's (Shao et al., 2024): under pi its gradient is that of KL(reference || pi).
    """
    gap = reference - logprobs
    return gap.expm1() - gap
