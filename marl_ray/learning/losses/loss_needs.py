"""Needs of losses: conditions on the other settings of a run, which are checked before a run starts.

A need is a function from the config of a run to a problem in one line, or None if the config meets the need. A loss
lists its needs in `PolicyLoss.needs`. A plug-in may declare them by name with `marl_ray.credit.requirements.requires`.
"""

from __future__ import annotations

from typing import Any

from marl_ray.config import Config
from marl_ray.config.budget import nodes_per_episode
from marl_ray.core.text import pluralize
from marl_ray.learning.losses.policy_loss import LossNeed


def several_optimizer_steps(config: Config) -> str | None:
    """Return a problem if a batch has one optimizer step, in which all ratios to the policy before it are 1."""
    if not _has_one_step(config):
        return None
    groups = pluralize(_groups_per_step(config), "group")
    return f"""{_subject(config)} is for several optimizer steps per batch, and there is one, in which all ratios are 1:
    set {config.algorithm}.train_batch_size below the {groups} of a step, or loss to policy_gradient"""


def off_policy_tokens(config: Config) -> str | None:
    """Return a problem if the policy that learns is the policy that sampled, up to rounding."""
    # The second step of a batch learns from tokens of the policy before the first one.
    if config.training.max_staleness > 0 or not _has_one_step(config):
        return None
    return f"""{_subject(config)} is for stale tokens, and with max_staleness 0 and one optimizer step per batch there
    are none: set {config.algorithm}.max_staleness above 0, or loss to policy_gradient"""


def no_importance_factor(config: Config) -> str | None:
    """Return a problem if `importance` would multiply a loss by a ratio that it contains already."""
    if config.training.importance not in ("truncate", "mask"):
        return None
    return f"""{config.algorithm}.importance {config.training.importance} would apply the ratio of loss
    {config.training.loss} a second time: set it to auto"""


def aggregates(aggregation: str) -> LossNeed:
    """Return the need of a loss that averages over a completion itself, for one value of `loss_aggregation`."""

    def loss_aggregation(config: Config) -> str | None:
        if config.training.loss_aggregation == aggregation:
            return None
        return f"""{_subject(config)} averages over the tokens of a completion itself: set
        {config.algorithm}.loss_aggregation to {aggregation}, not {config.training.loss_aggregation}"""

    return loss_aggregation


def declared_needs(requirements: Any) -> tuple[LossNeed, ...]:
    """Return the needs that a plug-in declares with `requires`."""
    needs: list[LossNeed] = []
    if requirements.several_optimizer_steps:
        needs.append(several_optimizer_steps)
    if requirements.off_policy_tokens:
        needs.append(off_policy_tokens)
    if requirements.own_importance_ratio:
        needs.append(no_importance_factor)
    if requirements.loss_aggregation is not None:
        needs.append(aggregates(requirements.loss_aggregation))
    return tuple(needs)


def _subject(config: Config) -> str:
    return f"{config.algorithm}.loss {config.training.loss}"


def _groups_per_step(config: Config) -> int:
    return config.training.rollout_buffer_size * nodes_per_episode(config)


def _has_one_step(config: Config) -> bool:
    size = config.training.train_batch_size  # None: all groups
    return size is None or size >= _groups_per_step(config)
