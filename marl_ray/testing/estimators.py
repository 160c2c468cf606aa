"""The check of an advantage estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marl_ray.credit.estimators.base import SiblingValues, make_estimator
from marl_ray.testing.values import require

if TYPE_CHECKING:
    from torch import Tensor

RETURNS = (
    (0.0, 1.0, 2.5, 2.5),
    (4.0, -1.0, 0.5, 4.0),
    (2.0, 2.0, 2.0, 2.0),
    (0.1, 0.2, 0.3, 1e4),
)
"""Returns of four groups: with ties at the top, with ties apart, all equal, and with an outlier."""


def check_estimator(plugin: Any) -> None:
    """Check an estimator: a function from returns [..., G] to advantages, where the last dimension holds siblings, or a
    subclass of `Estimator`.

    An estimator that `requires` a greedy or counterfactual sample, lengths or reward levels also receives these
    [..., G]; the last dimension of one that requires the whole batch holds all completions of a turn.
    """
    import torch

    estimator = make_estimator(plugin)

    def apply(returns: Tensor) -> Tensor:
        inputs = {name: torch.full_like(returns, 0.75) for name in estimator.requirements.inputs}
        return estimator.advantages(SiblingValues(returns, **inputs))

    rows = torch.tensor(RETURNS, dtype=torch.float64)
    returns = rows.clone()
    advantages = apply(returns)
    require(torch.equal(returns, rows), "the estimator modifies its input")
    fits = isinstance(advantages, torch.Tensor) and (advantages.shape, advantages.dtype) == (rows.shape, rows.dtype)
    require(fits, f"advantages must be a {rows.dtype} tensor of the returns' shape {tuple(rows.shape)}")
    require(bool(torch.isfinite(advantages).all()), "advantages must be finite")
    again = apply(rows)
    require(torch.equal(advantages, again), "the estimator returns different advantages for the same returns")
    alone = torch.stack([apply(row) for row in rows])
    require(torch.allclose(advantages, alone), "a group's advantages must not depend on other groups")
    order = torch.tensor([2, 0, 3, 1])
    in_order = torch.allclose(apply(rows[:, order]), advantages[:, order])
    require(in_order, "advantages must not depend on the siblings' order")
    # Entry [group, a, b] compares sibling a with sibling b.
    has_higher_return = rows[:, :, None] > rows[:, None, :]
    has_no_lower_advantage = advantages[:, :, None] >= advantages[:, None, :]
    is_monotonic = bool(has_no_lower_advantage[has_higher_return].all())
    require(is_monotonic, "a sibling with a higher return must not have a lower advantage")
