"""What somebody's own estimator gives is checked, and the error names it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from marl_ray.credit import ESTIMATORS
from marl_ray.credit.groups import advantages

RETURNS = (1.0, 2.0, 4.0)


def summed(returns: torch.Tensor) -> torch.Tensor:
    return returns.sum()


def column(returns: torch.Tensor) -> torch.Tensor:
    return returns[:, None]


def listed(returns: torch.Tensor) -> Any:
    return returns.tolist()


def divided(returns: torch.Tensor) -> torch.Tensor:
    return returns / 0.0


class Halved:
    def __call__(self, returns: torch.Tensor) -> torch.Tensor:
        return returns[1:]


@pytest.mark.parametrize(
    ("estimator", "name", "line"),
    [
        (summed, "summed", "must give advantages of the returns' shape (3,), not ()"),
        (column, "column", "must give advantages of the returns' shape (3,), not (3, 1)"),
        (listed, "listed", "must give a tensor, not list"),
        (divided, "divided", "must give finite advantages, not [inf, inf, inf] for the returns [1.0, 2.0, 4.0]"),
        (Halved(), "Halved", "must give advantages of the returns' shape (3,), not (2,)"),
    ],
)
@pytest.mark.parametrize("whiten", [False, True])
def test_a_wrong_answer_is_named(estimator: Callable[..., Any], name: str, line: str, whiten: bool) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        advantages(RETURNS, estimator, whiten)
    assert str(caught.value) == f"estimator {__name__}:{name} {line}"


def test_what_is_right_goes_through() -> None:
    assert advantages(RETURNS, ESTIMATORS.get("mareinforce"), False) == list(RETURNS)
    assert advantages((1.0, math.inf), ESTIMATORS.get("mareinforce"), False) == [1.0, math.inf]
