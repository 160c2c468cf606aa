"""Requirements of each estimator, loss and critic on the rest of a configuration, as data.

`marl_ray.config` checks a run's settings against them, and the rollout reads from them which extra joint actions to
sample. `marl_ray.credit.requirement_table` has each of them with its check. An estimator declares its own in its class,
as a loss does (`marl_ray.learning.losses`); critics are described here, so that no check imports torch. A plug-in uses
`requires`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from marl_ray.core.errors import UserError
from marl_ray.credit import CRITICS, ESTIMATORS
from marl_ray.credit.requirement_table import REQUIREMENTS
from marl_ray.registry import Registry

if TYPE_CHECKING:  # the config package reads this module
    from marl_ray.config import AgentConfig, Config

T = TypeVar("T")
INPUTS = {
    "joint_logprobs": "preferences",
    "lengths": "lengths",
    "reward_levels": "levels",
    "greedy_sample": "greedy_rewards",
    "coalition_samples": "coalition_rewards",
    "counterfactual_sample": "counterfactual_rewards",
}
"""Needs that are met by an input beside the returns: a field of `marl_ray.credit.estimators.base.SiblingValues`."""


class Requirements:
    """The requirements of one estimator, loss or critic, by the names in `marl_ray.credit.requirement_table`.

    A requirement is an attribute: its value, usually True, or False (None for `clip_range` and `loss_aggregation`) if
    it is not declared.

    Example:
        >>> Requirements(siblings=True).siblings, Requirements(siblings=True).lengths
        (True, False)
    """

    def __init__(self, **declared: Any) -> None:
        for name in declared:
            if name not in REQUIREMENTS:
                raise TypeError(f"there is no requirement {name}: use {', '.join(REQUIREMENTS)}")
        self.values: Mapping[str, Any] = {name: declared[name] for name in REQUIREMENTS if declared.get(name)}
        """The declared requirements, in the order of their checks."""

    def __getattr__(self, name: str) -> Any:
        if name not in REQUIREMENTS:
            raise AttributeError(name)
        return self.values.get(name, REQUIREMENTS[name].undeclared)

    @property
    def inputs(self) -> list[str]:
        """The inputs of an estimator beside the returns, as fields of `SiblingValues`."""
        return [field for need, field in INPUTS.items() if need in self.values]

    @property
    def options(self) -> list[str]:
        """The settings of the algorithm's section that have an effect because of these requirements."""
        return [option for need in self.values for option in REQUIREMENTS[need].options]

    def problems(self, choice: Choice) -> Iterator[str]:
        """Yield the problem of each need that the config of `choice` does not meet, with the key to change."""
        for name in self.values:
            check = REQUIREMENTS[name].check
            problem = None if check is None else check(choice)
            if problem is not None:
                yield problem


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting whose requirements are checked, as one agent has it: key `magrpo.estimator` and value `opo`.

    The value is empty for settings that are switched on. `key_of` returns the key of a field of the agent.
    """

    config: Config
    number: int
    """Number of the agent."""
    key: str
    value: str
    requirements: Requirements
    groups_per_step: int
    """Groups of an agent from which a step learns."""
    ends_early: bool
    """Whether some branches of a tree may have fewer turns than others with which they are compared."""
    key_of: Callable[[str], str]

    @property
    def agent(self) -> AgentConfig:
        return self.config.agents[self.number]

    @property
    def section(self) -> str:
        """The name of the algorithm's section."""
        return self.config.algorithm

    @property
    def name(self) -> str:
        return self.value or self.key

    @property
    def subject(self) -> str:
        return f"{self.key} {self.value}" if self.value else self.key

    @property
    def estimator_key(self) -> str:
        return self.key_of("estimator")

    @property
    def whitening_key(self) -> str:
        return f"{self.section}.normalize_advantages"

    @property
    def remedy(self) -> str:
        """The change after which nothing is compared: a key and its new value."""
        if self.key == self.whitening_key:
            return f"{self.key} to false"
        return f"{self.estimator_key} to mareinforce"


_CRITIC = Requirements(
    full_tree=True,
    equal_return_groups=True,
    fixed_returns=True,
    complete_returns=True,
    trains_from_zero=True,
    no_estimator=True,
    single_rank=True,
)
CRITIC_REQUIREMENTS = {
    "none": Requirements(),
    "iac": _CRITIC,
    "maac": Requirements(**_CRITIC.values, parallel_agents=True, joint_prompts=True),
}
GROUP_WHITENING, BATCH_WHITENING = Requirements(siblings=True), Requirements(whole_batch=True)
"""Requirements of normalize_advantages without and with a critic."""
LORA = Requirements(trains_from_zero=True)


def requires(**declared: Any) -> Callable[[T], T]:
    """Return a decorator that declares the requirements of a plug-in: names in `marl_ray.credit.requirement_table`.

    Example:
        >>> @requires(greedy_sample=True, parallel_agents=True)
        ... def margin(returns, greedy): ...
        >>> margin.requirements.greedy_sample
        True
    """

    def declare(plugin: T) -> T:
        plugin.requirements = Requirements(**declared)  # type: ignore[attr-defined]
        return plugin

    return declare


def estimator_requirements(name: str) -> Requirements:
    """Return the requirements of estimator `name`; a plug-in without `requires` has none."""
    return _requirements(name, ESTIMATORS, {}, Requirements())


def critic_requirements(name: str) -> Requirements:
    """Return the requirements of critic `name`; a plug-in without `requires` has the ones of `iac`."""
    return _requirements(name, CRITICS, CRITIC_REQUIREMENTS, _CRITIC)


def _requirements(
    name: str, registry: Registry, known: Mapping[str, Requirements], default: Requirements
) -> Requirements:
    """Return the requirements of a bundled choice, or import a plug-in and read them.

    A config can be read without its plug-ins, for example for a report: a failed import gives the default here, and is
    an error when a run starts.
    """
    if name in known:
        return known[name]
    try:
        return getattr(registry.get(name), "requirements", default)
    except UserError:
        return default
