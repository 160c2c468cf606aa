"""Policy losses: one class per file, with its paper, formula, needs and options.

No file of this package imports torch when it is imported, because a config is checked without torch. The tensors that a
loss receives have the operations as methods.
"""

from __future__ import annotations

from typing import Any

from marl_ray.core.errors import UserError
from marl_ray.learning import LOSSES
from marl_ray.learning.losses.policy_loss import ClipOptions, PolicyLoss


def loss_class(name: str) -> type[PolicyLoss]:
    """Return the class of a loss, whose needs and options are read before a run.

    A config can be read without its plug-ins, for example for a report: in place of a plug-in that cannot be imported
    it has `PolicyLoss`, which needs nothing. The failed import is an error when a run starts.
    """
    try:
        loss: type[PolicyLoss] = LOSSES.get(name)
    except UserError:
        return PolicyLoss
    requirements = getattr(loss, "requirements", None)
    if requirements is not None:
        _apply(requirements, loss)
    return loss


def _apply(requirements: Any, loss: type[PolicyLoss]) -> None:
    """Set the requirements of the decorator `marl_ray.credit.requirements.requires` as attributes of a plug-in."""
    # The needs read the config, and the config's own modules import this package.
    from marl_ray.learning.losses.loss_needs import declared_needs

    loss.needs = declared_needs(requirements)
    loss.uses_old_logprobs = requirements.several_optimizer_steps or requirements.old_logprobs
    loss.compares_with_sampler = requirements.own_importance_ratio
    if requirements.clip_range is not None:
        low, high = requirements.clip_range
        loss.defaults = ClipOptions(clip_low=low, clip_high=high)
