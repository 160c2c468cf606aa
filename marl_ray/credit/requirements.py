"""Requirements of each estimator and critic on the rest of a configuration, as data.

`marl_ray.config` checks a run's settings against these records, and the rollout reads from them which extra joint
actions to sample. A bundled estimator or critic is described here beside its registry entry, so that no check imports
it. A plug-in, which may be a loss, declares its requirements with `requires`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from marl_ray.core.errors import UserError
from marl_ray.credit import CRITICS, ESTIMATORS
from marl_ray.registry import Registry

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Requirements of one estimator, loss or critic. By default, as for a plug-in, there are none."""

    siblings: bool = False
    """At least two completions per group: num_generations > 1."""
    greedy_sample: bool = False
    """The rewards of one greedy joint action per node, as a baseline."""
    counterfactual_sample: bool = False
    """The rewards of each joint action with one agent's completion replaced, as baselines."""
    coalition_samples: bool = False
    """The rewards of each joint action with every subset of the completions replaced by empty ones."""
    lengths: bool = False
    """The lengths of the completions in tokens."""
    reward_levels: bool = False
    """The sums of the levels of the reward, each normalised within the group."""
    joint_logprobs: bool = False
    """The weights of preferences between joint actions, which depend on their log-probabilities."""
    whole_batch: bool = False
    """All groups of a batch, with more than one completion, before the first advantage is known."""
    immediate_rewards: bool = False
    """Returns that are rewards: one turn, or a handoff other than `all`."""
    full_tree: bool = False
    """The continuation of every joint action: one turn, or handoff `all`."""
    parallel_agents: bool = False
    """An environment in which all agents of a turn answer at the same time."""
    equal_return_groups: bool = False
    """Groups of equal returns too, because their gradient is not zero: no dynamic_sampling."""
    fixed_returns: bool = False
    """Returns that the learner does not change: a reference_kl in the loss where there is a reference policy."""
    reference: bool = False
    """A reference policy: reference_kl_coef above 0."""
    complete_returns: bool = False
    """Returns over the same number of turns: no early_termination_threshold with handoff `all`."""
    magrpo_if_whitened: bool = False
    """An affine map of the group's returns, which normalize_advantages turns into MAGRPO: no normalize_advantages."""
    own_scale: bool = False
    """Advantages with a scale of their own: no normalize_advantages."""
    magrpo_if_one_baseline: bool = False
    """Baselines that differ between siblings if advantages are normalised: several agents and joint_mode aligned."""
    trains_from_zero: bool = False
    """An optimizer for new weights that start at 0: not adafactor, whose steps scale with the weights."""
    several_optimizer_steps: bool = False
    """More than one optimizer step per batch."""
    old_logprobs: bool = False
    """The policy's log-probabilities before the batch's first optimizer step, if there are several steps."""
    off_policy_tokens: bool = False
    """More than one optimizer step per batch, or max_staleness above 0."""
    own_importance_ratio: bool = False
    """No second importance weight: importance auto or none."""
    loss_aggregation: str | None = None
    """This loss_aggregation and no other."""
    clip_range: tuple[float, float] | None = None
    """Default distances below and above 1 at which a ratio is clipped; None: clip_low and clip_high do not apply."""
    no_estimator: bool = False
    """Advantages from a critic, so that an agent names no estimator of its own."""
    single_rank: bool = False
    """A learner of one rank."""
    joint_prompts: bool = False
    """The prompts of all agents as a critic's state, and hence one tokenizer."""

    @property
    def second_argument(self) -> bool:
        """Whether an estimator takes a second argument (`marl_ray.credit.returns.baselines`)."""
        samples = self.greedy_sample or self.counterfactual_sample or self.coalition_samples
        return samples or self.lengths or self.reward_levels or self.joint_logprobs


ESTIMATOR_REQUIREMENTS = {
    "magrpo": Requirements(siblings=True),
    "grpo": Requirements(siblings=True),
    "marloo": Requirements(siblings=True, magrpo_if_whitened=True),
    "maremax": Requirements(siblings=True, magrpo_if_whitened=True),
    "mareinforce": Requirements(complete_returns=True),
    "remax": Requirements(greedy_sample=True, immediate_rewards=True, parallel_agents=True, magrpo_if_whitened=True),
    "difference": Requirements(
        counterfactual_sample=True, immediate_rewards=True, parallel_agents=True, magrpo_if_one_baseline=True
    ),
    "centred_difference": Requirements(
        siblings=True,
        counterfactual_sample=True,
        immediate_rewards=True,
        parallel_agents=True,
        magrpo_if_one_baseline=True,
    ),
    "shapley": Requirements(siblings=True, coalition_samples=True, immediate_rewards=True, parallel_agents=True),
    "reinforce_pp": Requirements(
        whole_batch=True, equal_return_groups=True, fixed_returns=True, complete_returns=True, magrpo_if_whitened=True
    ),
    "opo": Requirements(siblings=True, lengths=True, magrpo_if_whitened=True),
    "maxrl": Requirements(siblings=True, magrpo_if_whitened=True),
    "pass_at_k": Requirements(siblings=True, own_scale=True),
    "gdpo": Requirements(
        siblings=True,
        reward_levels=True,
        whole_batch=True,
        equal_return_groups=True,
        fixed_returns=True,
        complete_returns=True,
        own_scale=True,
    ),
    "madpo": Requirements(siblings=True, joint_logprobs=True, fixed_returns=True, own_scale=True),
    "distillation": Requirements(reference=True, fixed_returns=True, equal_return_groups=True, own_scale=True),
}
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
    "maac": replace(_CRITIC, parallel_agents=True, joint_prompts=True),
}
GROUP_WHITENING, BATCH_WHITENING = Requirements(siblings=True), Requirements(whole_batch=True)
"""Requirements of normalize_advantages without and with a critic."""
LORA = Requirements(trains_from_zero=True)


def requires(**needs: Any) -> Callable[[T], T]:
    """Return a decorator that declares the requirements of a plug-in: fields of `Requirements`.

    Example:
        >>> @requires(greedy_sample=True, parallel_agents=True)
        ... def margin(returns, greedy): ...
        >>> margin.requirements.greedy_sample
        True
    """

    def declare(plugin: T) -> T:
        plugin.requirements = Requirements(**needs)  # type: ignore[attr-defined]
        return plugin

    return declare


def estimator_requirements(name: str) -> Requirements:
    """Return the requirements of estimator `name`; a plug-in without `requires` has none."""
    return _requirements(name, ESTIMATORS, ESTIMATOR_REQUIREMENTS, Requirements())


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
