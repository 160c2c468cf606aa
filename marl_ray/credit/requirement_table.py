"""The requirements that estimators, losses and critics may have of the rest of a configuration.

A plug-in declares its requirements by these names, and a run whose config does not meet one of them does not start:

    @requires(greedy_sample=True, parallel_agents=True)
    def margin(returns, greedy): ...

REQUIREMENTS, at the end, lists them in the order in which problems are reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marl_ray.core.text import pluralize

if TYPE_CHECKING:  # the config package reads this module
    from marl_ray.credit.requirements import Choice

MAX_COALITION_AGENTS = 6
"""Maximum number of agents of whose completions every subset is executed: 2^6 executions per joint action."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement, by the name in REQUIREMENTS."""

    check: Callable[[Choice], str | None] | None = None
    """Returns the problem of a choice, with the key to change, or None if the config meets the requirement. One
    without a check is met by the rollout or the learner, or checked when a run starts."""
    options: tuple[str, ...] = ()
    """Settings of the algorithm's section without an effect where the requirement is not declared."""
    undeclared: bool | None = False
    """The value of the requirement where it is not declared."""


def _siblings(choice: Choice) -> str | None:
    training = choice.config.training
    section = choice.section
    if max(training.group_sizes) == 1:
        return f"""{section}.num_generations is 1, but {choice.name} compares the completions of a group: set it to 2 or
        more, or {choice.remedy}"""
    if min(training.group_sizes) == 1 and training.handoff != "all":
        return f"""{section}.num_generations {list(training.group_sizes)} has turns with one completion, from which
        {choice.name} learns nothing: set {section}.handoff to all, so that earlier turns learn from them, or raise
        it"""
    return None


def _counterfactual_sample(choice: Choice) -> str | None:
    kind = choice.config.training.counterfactual
    if kind == "empty" or min(choice.config.training.group_sizes) > 1:
        return None
    return f"""{choice.section}.counterfactual {kind} needs siblings, and {choice.section}.num_generations is 1: set it
    to 2 or more, or counterfactual to empty"""


def _coalition_samples(choice: Choice) -> str | None:
    agents = choice.config.num_agents
    if agents <= MAX_COALITION_AGENTS:
        return None
    return f"""{choice.subject} executes every subset of {agents} agents' completions, and {MAX_COALITION_AGENTS} agents
    are the limit: use {choice.estimator_key} difference"""


def _whole_batch(choice: Choice) -> str | None:
    training = choice.config.training
    if min(training.group_sizes) * training.rollout_buffer_size > 1:
        return None
    return f"""{choice.subject} compares the completions of a batch, and with num_generations 1 and rollout_buffer_size
    1 there is one: raise one of them, or set {choice.remedy}"""


def _immediate_rewards(choice: Choice) -> str | None:
    training = choice.config.training
    if training.handoff != "all" or training.num_turns == 1:
        return None
    return f"""{choice.subject} uses the reward of a joint action that is not continued, and with handoff all siblings
    are ranked by their continuations: set {choice.section}.handoff to random or best, or num_turns to 1"""


def _last_turn_rewards(choice: Choice) -> str | None:
    training = choice.config.training
    if training.handoff != "all" or training.num_turns == 1:
        return None
    sizes = list(training.group_sizes)
    last = sizes.pop()
    key = f"{choice.section}.num_generations"
    if max(sizes) == 1:
        return f"""{choice.subject} compares siblings before the last turn, where no
        continuation without an agent is known, and {key} has one completion there: raise it"""
    if last > 1:
        return None
    if choice.requirements.siblings:
        return f"""{choice.subject} compares siblings, and {key} has one completion in the
        last turn, the only turn of a tree in which the reward without an agent is known:
        use {choice.estimator_key} difference, or raise it"""
    if training.normalize_advantages:
        return f"""{choice.whitening_key} makes the advantage of a single completion 0, and
        {key} has one in the last turn, from which {choice.subject} learns: set it to false"""
    return None


def _full_tree(choice: Choice) -> str | None:
    training = choice.config.training
    if training.handoff == "all" or training.num_turns == 1:
        return None
    return f"""{choice.subject} needs the continuation of every completion, and handoff {training.handoff} continues
    only one of them: set {choice.section}.handoff to all (with num_generations 1 an episode is a chain)"""


def _equal_return_groups(choice: Choice) -> str | None:
    if not choice.config.training.dynamic_sampling:
        return None
    return f"""{choice.subject} learns from groups of equal returns too, and {choice.section}.dynamic_sampling would
    skip them: set it to false"""


def _fixed_returns(choice: Choice) -> str | None:
    training = choice.config.training
    if not choice.agent.reference_kl_coef or training.kl_in_loss:
        return None
    return f"""{choice.subject} needs the final returns of a batch, and {choice.section}.reference_kl
    {training.reference_kl} would change them in the learner: set it to k3_in_loss or k2_in_loss"""


def _reference(choice: Choice) -> str | None:
    if choice.agent.reference_kl_coef:
        return None
    return f"""{choice.subject} learns from the divergence from a reference policy only, and
    {choice.key_of("reference_kl_coef")} is 0: set it above 0"""


def _complete_returns(choice: Choice) -> str | None:
    if not choice.ends_early:
        return None
    return f"""{choice.section}.early_termination_threshold with handoff all would let {choice.subject} compare groups
    that ended early with groups that continued, whose returns have more turns: set it to null"""


def _magrpo_if_whitened(choice: Choice) -> str | None:
    if not choice.config.training.normalize_advantages:
        return None
    return f"""{choice.whitening_key} makes {choice.name} the same as magrpo (each is an affine map of the returns): set
    it to false, or use {choice.estimator_key} magrpo"""


def _own_scale(choice: Choice) -> str | None:
    if not choice.config.training.normalize_advantages:
        return None
    return f"""{choice.whitening_key} would replace the scale that {choice.name} gives its advantages: set it to
    false"""


def _magrpo_if_one_baseline(choice: Choice) -> str | None:
    config = choice.config
    if not config.training.normalize_advantages:
        return None
    if config.num_agents > 1 and config.training.joint_mode != "cross":
        return None
    return f"""{choice.whitening_key} makes {choice.name} the same as magrpo if all siblings have one baseline, as with
    joint_mode cross or one agent: set it to false, or use {choice.estimator_key} magrpo"""


def _trains_from_zero(choice: Choice) -> str | None:
    if choice.config.training.optimizer != "adafactor":
        return None
    return f"""{choice.section}.optimizer adafactor scales steps by the size of the weights, and {choice.key} adds
    weights that start at 0 and would stay near it: set it to adamw or adamw_8bit"""


def _no_estimator(choice: Choice) -> str | None:
    if choice.agent.estimator == choice.section:
        return None
    return f"""{choice.estimator_key} {choice.agent.estimator} compares siblings, and {choice.subject} compares returns
    with a value: leave one of them out"""


def _single_rank(choice: Choice) -> str | None:
    ranks = choice.agent.learner.ranks
    if ranks == 1:
        return None
    return f"""{choice.key_of("learner.ranks")} is {ranks}, and {choice.subject} has one rank: set it to 1, or
    {choice.key} to none"""


def _several_optimizer_steps(choice: Choice) -> str | None:
    if not _has_one_step(choice):
        return None
    groups = pluralize(choice.groups_per_step, "group")
    return f"""{choice.subject} is for several optimizer steps per batch, and there is one, in which all ratios are 1:
    set {choice.section}.train_batch_size below the {groups} of a step, or loss to policy_gradient"""


def _off_policy_tokens(choice: Choice) -> str | None:
    # The second step of a batch learns from tokens of the policy before the first one.
    if choice.config.training.max_staleness > 0 or not _has_one_step(choice):
        return None
    return f"""{choice.subject} is for stale tokens, and with max_staleness 0 and one optimizer step per batch there
    are none: set {choice.section}.max_staleness above 0, or loss to policy_gradient"""


def _has_one_step(choice: Choice) -> bool:
    size = choice.config.training.train_batch_size  # None: all groups
    return size is None or size >= choice.groups_per_step


def _own_importance_ratio(choice: Choice) -> str | None:
    importance = choice.config.training.importance
    if importance not in ("truncate", "mask"):
        return None
    return f"""{choice.section}.importance {importance} would apply the ratio of loss {choice.value} a second time: set
    it to auto"""


def _loss_aggregation(choice: Choice) -> str | None:
    needed = choice.requirements.loss_aggregation
    if choice.config.training.loss_aggregation == needed:
        return None
    return f"""{choice.subject} averages over the tokens of a completion itself: set {choice.section}.loss_aggregation
    to {needed}, not {choice.config.training.loss_aggregation}"""


VALUE_OPTIONS = ("critic_target", "critic_learning_rate", "value_clip_range", "value_head_hidden_dim")
"""Options of every critic."""
REQUIREMENTS: dict[str, Requirement] = {
    # At least two completions per group: num_generations > 1.
    "siblings": Requirement(_siblings),
    # The rewards of one greedy joint action per node, as a baseline.
    "greedy_sample": Requirement(),
    # The rewards of each joint action with one agent's completion replaced, as baselines.
    "counterfactual_sample": Requirement(_counterfactual_sample, ("counterfactual",)),
    # The rewards of each joint action with every subset of the completions replaced by empty ones.
    "coalition_samples": Requirement(_coalition_samples),
    # The lengths of the completions in tokens.
    "lengths": Requirement(),
    # The sums of the levels of the reward, each normalised within the group.
    "reward_levels": Requirement(),
    # The weights of preferences between joint actions, which depend on their log-probabilities.
    "joint_logprobs": Requirement(options=("preference_pairs",)),
    # All groups of a batch, with more than one completion, before the first advantage is known.
    "whole_batch": Requirement(_whole_batch),
    # Returns that are rewards: one turn, or a handoff other than `all`.
    "immediate_rewards": Requirement(_immediate_rewards),
    # Returns that are rewards in the last turn; with handoff `all`, siblings in the turns before.
    "last_turn_rewards": Requirement(_last_turn_rewards),
    # The continuation of every joint action: one turn, or handoff `all`.
    "full_tree": Requirement(_full_tree),
    # An environment in which all agents of a turn answer at the same time: checked when a run starts.
    "parallel_agents": Requirement(),
    # Groups of equal returns too, because their gradient is not zero: no dynamic_sampling.
    "equal_return_groups": Requirement(_equal_return_groups),
    # Returns that the learner does not change: a reference_kl in the loss where there is a reference policy.
    "fixed_returns": Requirement(_fixed_returns),
    # A reference policy: reference_kl_coef above 0.
    "reference": Requirement(_reference),
    # Returns over the same number of turns: no early_termination_threshold with handoff `all`.
    "complete_returns": Requirement(_complete_returns),
    # An affine map of the group's returns, which normalize_advantages turns into MAGRPO: no normalize_advantages.
    "magrpo_if_whitened": Requirement(_magrpo_if_whitened),
    # Advantages with a scale of their own: no normalize_advantages.
    "own_scale": Requirement(_own_scale),
    # Baselines that differ between siblings if advantages are normalised: several agents and joint_mode aligned.
    "magrpo_if_one_baseline": Requirement(_magrpo_if_one_baseline),
    # An optimizer for new weights that start at 0: not adafactor, whose steps scale with the weights.
    "trains_from_zero": Requirement(_trains_from_zero),
    # More than one optimizer step per batch.
    "several_optimizer_steps": Requirement(_several_optimizer_steps),
    # The policy's log-probabilities before the batch's first optimizer step, if there are several steps.
    "old_logprobs": Requirement(),
    # More than one optimizer step per batch, or max_staleness above 0.
    "off_policy_tokens": Requirement(_off_policy_tokens),
    # No second importance weight: importance auto or none.
    "own_importance_ratio": Requirement(_own_importance_ratio),
    # This loss_aggregation and no other.
    "loss_aggregation": Requirement(_loss_aggregation, undeclared=None),
    # Default distances below and above 1 at which a ratio is clipped; None: clip_low and clip_high do not apply.
    "clip_range": Requirement(undeclared=None),
    # Advantages from a critic, so that an agent names no estimator of its own.
    "no_estimator": Requirement(_no_estimator, VALUE_OPTIONS),
    # A learner of one rank.
    "single_rank": Requirement(_single_rank),
    # The prompts of all agents as a critic's state, and hence one tokenizer: checked when a run starts.
    "joint_prompts": Requirement(),
}
"""All requirements by name, in the order in which problems are reported."""
