"""The result of a plug-in estimator is checked, and errors name the estimator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from marl_ray.credit.advantages import advantages
from marl_ray.credit.estimators.base import load_estimator, make_estimator

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
def test_an_invalid_result_is_an_error_that_names_the_estimator(
    estimator: Callable[..., Any], name: str, line: str, whiten: bool
) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        advantages(RETURNS, make_estimator(estimator), whiten)
    assert str(caught.value) == f"estimator {__name__}:{name} {line}"


def test_valid_advantages_are_returned() -> None:
    assert advantages(RETURNS, load_estimator("mareinforce"), False) == list(RETURNS)
    assert advantages((1.0, math.inf), load_estimator("mareinforce"), False) == [1.0, math.inf]
