"""Policy losses: one class per file, with its paper, formula, needs and options.

No file of this package imports torch when it is imported, because a config is checked without torch. The tensors that a
loss receives have the operations as methods.
"""

from __future__ import annotations

from marl_ray.core.errors import UserError
from marl_ray.learning import LOSSES
from marl_ray.learning.losses.policy_loss import PolicyLoss


def loss_class(name: str) -> type[PolicyLoss]:
    """Return the class of a loss, whose needs and options are read before a run.

    A config can be read without its plug-ins, for example for a report: in place of a plug-in that cannot be imported
    it has `PolicyLoss`, which needs nothing. The failed import is an error when a run starts.
    """
    try:
        loss: type[PolicyLoss] = LOSSES.get(name)
    except UserError:
        return PolicyLoss
    return loss
