"""The input and the base class of estimators, and arithmetic that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from marl_ray.core.errors import UserError
from marl_ray.credit import ESTIMATORS
from marl_ray.credit.requirements import Requirements

if TYPE_CHECKING:
    from torch import Tensor
else:  # tensors bring their own operations, so estimators do not need torch
    Tensor = Any

EPSILON = 1e-6
"""Added to a deviation before a division by it."""
ROUNDING = 1e-9
"""Difference of two returns, relative to the largest of them, below which only rounding tells them apart."""


@dataclass(frozen=True, slots=True)
class SiblingValues:
    """The values that an estimator compares, [..., G] each in float64, where the last dimension holds siblings.

    With the requirement `whole_batch` the last dimension holds all completions of an agent in one turn of the batch.
    An input that the estimator does not require is None.

    Example:
        >>> import torch
        >>> SiblingValues(torch.tensor([4.0, 1.0])).lengths is None
        True
    """

    returns: Tensor
    greedy_rewards: Tensor | None = None
    """The reward of the node's greedy joint action."""
    counterfactual_rewards: Tensor | None = None
    """The reward with the agent's completion replaced, as the setting `counterfactual` says; before the last turn of a
    whole tree the mean return of the siblings."""
    coalition_rewards: Tensor | None = None
    """The reward less the agent's Shapley value; before the last turn of a whole tree the mean return."""
    lengths: Tensor | None = None
    """The number of tokens of the completion."""
    levels: Tensor | None = None
    """The sum of the levels of the reward, each normalised within the group."""
    preferences: Tensor | None = None
    """The weight of the completion in the preferences between joint actions (`marl_ray.credit.preferences`)."""


class Estimator(ABC):
    """A map from the returns of siblings to their advantages.

    An estimator is pure, and does not depend on the order of siblings. A class that is named in a config is created
    without arguments.
    """

    requirements: ClassVar[Requirements] = Requirements()

    @abstractmethod
    def advantages(self, values: SiblingValues) -> Tensor:
        """Return the advantages, of the shape of the returns."""

    @property
    def name(self) -> str:
        """The class in error messages."""
        return f"{type(self).__module__}:{type(self).__qualname__}"


class FunctionEstimator(Estimator):
    """A plug-in that is a function of the returns, or of the returns and the input that it `requires`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.requirements = getattr(function, "requirements", Requirements())  # type: ignore[misc]
        inputs = self.requirements.inputs
        if len(inputs) > 1:
            raise UserError(
                f"estimator {self.name} requires {' and '.join(inputs)}, and a function has one input beside the "
                "returns: use a subclass of marl_ray.credit.estimators.base.Estimator"
            )

    def advantages(self, values: SiblingValues) -> Tensor:
        arguments = [values.returns]
        if self.requirements.inputs:
            arguments.append(getattr(values, self.requirements.inputs[0]))
        result: Tensor = self.function(*arguments)
        return result

    @property
    def name(self) -> str:
        named = self.function
        if not hasattr(named, "__qualname__"):  # a callable object
            named = type(named)
        return f"{named.__module__}:{named.__qualname__}"


def make_estimator(plugin: Any) -> Estimator:
    """Return an estimator from a plug-in: a subclass of `Estimator`, an instance, or a function."""
    if isinstance(plugin, type):
        plugin = plugin()
    return plugin if isinstance(plugin, Estimator) else FunctionEstimator(plugin)


def load_estimator(name: str) -> Estimator:
    """Return the estimator of this name. Raises UserError as `Registry.get` does."""
    return make_estimator(ESTIMATORS.get(name))


def are_equal(values: Tensor, sizes: Tensor) -> Tensor:
    """Return whether the siblings' values [..., G] are equal up to rounding, [..., 1].

    `sizes` [..., G] are the absolute values of the numbers that the values were computed from.
    """
    spread = values.amax(dim=-1, keepdim=True) - values.amin(dim=-1, keepdim=True)
    largest = sizes.amax(dim=-1, keepdim=True)
    return (spread <= ROUNDING * largest) & largest.isfinite()


def zero_if_equal(advantages: Tensor, returns: Tensor) -> Tensor:
    """Return the advantages, and exact zeros for siblings whose returns are equal up to rounding.

    Without this step the rounding of a mean would be a small gradient, and a task that all siblings solve would count
    as a task with a signal.
    """
    return advantages.masked_fill(are_equal(returns, returns.abs()), 0.0)


def difference(returns: Tensor, baselines: Tensor) -> Tensor:
    """Return R - baseline, and exactly zero where the two are equal up to rounding."""
    sizes = returns.abs().maximum(baselines.abs())
    differences = returns - baselines
    is_rounding = (differences.abs() <= ROUNDING * sizes) & sizes.isfinite()
    return differences.masked_fill(is_rounding, 0.0)


def less_mean(values: Tensor) -> Tensor:
    """Return V - mean(V); equal values give zeros."""
    return zero_if_equal(values - values.mean(dim=-1, keepdim=True), values)


def whitened(values: Tensor) -> Tensor:
    """Return (V - mean(V)) / std(V) with the population standard deviation; equal values give zeros."""
    centered = values - values.mean(dim=-1, keepdim=True)
    deviation = centered.std(dim=-1, keepdim=True, correction=0)
    return zero_if_equal(centered / (deviation + EPSILON), values)
