"""Advantages: an estimator applied to the returns of a group, or of all groups of a turn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from marl_ray.config import AgentConfig, CreditConfig
from marl_ray.core.batch import Group
from marl_ray.credit.estimators.base import Estimator, SiblingValues, load_estimator, whitened
from marl_ray.credit.estimators.reinforce_pp import ReinforcePlusPlus

if TYPE_CHECKING:
    from torch import Tensor

WHITENING = ReinforcePlusPlus()
"""Whitens the advantages of a critic over all completions of a turn."""
NO_INPUTS: Mapping[str, Sequence[float]] = {}
UNNAMED = "baselines"
"""The input of a group from a batch log of version 0.2, which does not name it: estimators of that version had one."""


def group_advantages(group: Group, agent: AgentConfig, credit: CreditConfig) -> list[float]:
    """Return the advantage of each call of a group, by an estimator that does not need the whole batch."""
    estimator = load_estimator(agent.estimator)
    # The calls of one sibling have equal returns; siblings are compared and not their calls.
    returns = dict(zip(group.siblings, group.returns, strict=True))
    if len(returns) == 1 and estimator.requirements.siblings:  # nothing to compare
        return [0.0] * len(group.calls)
    inputs: dict[str, Sequence[float]] = {}
    for name, numbers in group.inputs.items():
        inputs[name] = list(dict(zip(group.siblings, numbers, strict=True)).values())
    values = advantages(list(returns.values()), estimator, credit.normalize_advantages, inputs)
    advantage_of = dict(zip(returns, values, strict=True))
    return [advantage_of[sibling] for sibling in group.siblings]


def advantages_by_turn(
    turns: Sequence[int],
    given: Sequence[Sequence[float]],
    estimator: Estimator = WHITENING,
    inputs: Sequence[Mapping[str, Sequence[float]]] = (),
) -> list[list[float]]:
    """Apply an estimator to the values of all groups of a turn together, and return the result [G] per group.

    Turns are kept apart because, on a full tree, returns of earlier turns contain more rewards. `inputs` has the inputs
    of each group; empty for an estimator without inputs.
    """
    values_of_turn: dict[int, list[float]] = {}
    inputs_of_turn: dict[int, dict[str, list[float]]] = {}
    for number, turn in enumerate(turns):
        values_of_turn.setdefault(turn, []).extend(given[number])
        of_turn = inputs_of_turn.setdefault(turn, {})
        of_group = inputs[number] if inputs else NO_INPUTS
        for name, numbers in of_group.items():
            of_turn.setdefault(name, []).extend(numbers)
    results = {}
    for turn, values in values_of_turn.items():
        results[turn] = iter(advantages(values, estimator, whiten=False, inputs=inputs_of_turn[turn]))
    # The result of a turn has its groups one after another.
    return [list(islice(results[turn], len(numbers))) for turn, numbers in zip(turns, given, strict=True)]


def advantages(
    returns: Sequence[float], estimator: Estimator, whiten: bool, inputs: Mapping[str, Sequence[float]] = NO_INPUTS
) -> list[float]:
    """Return the advantages of one group, or of any other set of returns that is compared, in float64.

    Raises TypeError or ValueError, naming the estimator, if the result is not a finite tensor of the returns' shape.
    """
    import torch  # imported late: the driver starts without torch

    def tensor(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    named: dict[str, Tensor] = {}
    for name in estimator.requirements.inputs:
        named[name] = tensor(inputs[name] if name in inputs else inputs[UNNAMED])
    result = estimator.advantages(SiblingValues(tensor(returns), **named))
    subject = f"estimator {estimator.name}"
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"{subject} must give a tensor, not {type(result).__name__}")
    if result.shape != (len(returns),):
        shapes = f"{(len(returns),)}, not {tuple(result.shape)}"
        raise ValueError(f"{subject} must give advantages of the returns' shape {shapes}")
    if not bool(result.isfinite().all()) and all(map(math.isfinite, returns)):
        raise ValueError(
            f"{subject} must give finite advantages, not {result.tolist()} for the returns {list(returns)}"
        )
    if whiten:
        result = whitened(result)
    values: list[float] = result.tolist()
    return values
