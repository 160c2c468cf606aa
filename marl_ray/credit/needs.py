"""The needs of estimators, losses and critics on the rest of a configuration.

A plug-in declares its needs by these names, and a run whose config does not meet one of them does not start:

    @requires(greedy_sample=True, parallel_agents=True)
    def margin(returns, greedy): ...

NEEDS, at the end, lists the needs in the order in which problems are reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the config package reads this module
    from marl_ray.credit.requirements import Choice

MAX_COALITION_AGENTS = 6
"""Maximum number of agents of whose completions every subset is executed: 2^6 executions per joint action."""


Need = Callable[["Choice"], str | None]
"""Returns the problem of a choice, with the key to change; None if the config meets the need."""


def _siblings(choice: Choice) -> str | None:
    rollout, section = choice.config.training, choice.section
    if max(rollout.group_sizes) == 1:
        return f"""{section}.num_generations is 1, but {choice.name} compares the completions of a group: set it to 2 or
        more, or {choice.remedy}"""
    if min(rollout.group_sizes) == 1 and rollout.handoff != "all":
        return f"""{section}.num_generations {list(rollout.group_sizes)} has turns with one completion, from which
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
    rollout = choice.config.training
    if min(rollout.group_sizes) * rollout.rollout_buffer_size > 1:
        return None
    return f"""{choice.subject} compares the completions of a batch, and with num_generations 1 and rollout_buffer_size
    1 there is one: raise one of them, or set {choice.remedy}"""


def _immediate_rewards(choice: Choice) -> str | None:
    rollout = choice.config.training
    if rollout.handoff != "all" or rollout.num_turns == 1:
        return None
    return f"""{choice.subject} uses the reward of a joint action that is not continued, and with handoff all siblings
    are ranked by their continuations: set {choice.section}.handoff to random or best, or num_turns to 1"""


def _full_tree(choice: Choice) -> str | None:
    rollout = choice.config.training
    if rollout.handoff == "all" or rollout.num_turns == 1:
        return None
    return f"""{choice.subject} needs the continuation of every completion, and handoff {rollout.handoff} continues only
    one of them: set {choice.section}.handoff to all (with num_generations 1 an episode is a chain)"""


def _equal_return_groups(choice: Choice) -> str | None:
    if not choice.config.training.dynamic_sampling:
        return None
    return f"""{choice.subject} learns from groups of equal returns too, and {choice.section}.dynamic_sampling would
    skip them: set it to false"""


def _fixed_returns(choice: Choice) -> str | None:
    optimizer = choice.config.training
    if not choice.agent.reference_kl_coef or optimizer.kl_in_loss:
        return None
    return f"""{choice.subject} needs the final returns of a batch, and {choice.section}.reference_kl
    {optimizer.reference_kl} would change them in the learner: set it to k3_in_loss or k2_in_loss"""


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


NEEDS: dict[str, Need | None] = {
    # At least two completions per group: num_generations > 1.
    "siblings": _siblings,
    # The rewards of one greedy joint action per node, as a baseline.
    "greedy_sample": None,
    # The rewards of each joint action with one agent's completion replaced, as baselines.
    "counterfactual_sample": _counterfactual_sample,
    # The rewards of each joint action with every subset of the completions replaced by empty ones.
    "coalition_samples": _coalition_samples,
    # The lengths of the completions in tokens.
    "lengths": None,
    # The sums of the levels of the reward, each normalised within the group.
    "reward_levels": None,
    # The weights of preferences between joint actions, which depend on their log-probabilities.
    "joint_logprobs": None,
    # All groups of a batch, with more than one completion, before the first advantage is known.
    "whole_batch": _whole_batch,
    # Returns that are rewards: one turn, or a handoff other than `all`.
    "immediate_rewards": _immediate_rewards,
    # The continuation of every joint action: one turn, or handoff `all`.
    "full_tree": _full_tree,
    # An environment in which all agents of a turn answer at the same time: checked when a run starts.
    "parallel_agents": None,
    # Groups of equal returns too, because their gradient is not zero: no dynamic_sampling.
    "equal_return_groups": _equal_return_groups,
    # Returns that the learner does not change: a reference_kl in the loss where there is a reference policy.
    "fixed_returns": _fixed_returns,
    # A reference policy: reference_kl_coef above 0.
    "reference": _reference,
    # Returns over the same number of turns: no early_termination_threshold with handoff `all`.
    "complete_returns": _complete_returns,
    # An affine map of the group's returns, which normalize_advantages turns into MAGRPO: no normalize_advantages.
    "magrpo_if_whitened": _magrpo_if_whitened,
    # Advantages with a scale of their own: no normalize_advantages.
    "own_scale": _own_scale,
    # Baselines that differ between siblings if advantages are normalised: several agents and joint_mode aligned.
    "magrpo_if_one_baseline": _magrpo_if_one_baseline,
    # An optimizer for new weights that start at 0: not adafactor, whose steps scale with the weights.
    "trains_from_zero": _trains_from_zero,
    # More than one optimizer step per batch.
    "several_optimizer_steps": None,
    # The policy's log-probabilities before the batch's first optimizer step, if there are several steps.
    "old_logprobs": None,
    # More than one optimizer step per batch, or max_staleness above 0.
    "off_policy_tokens": None,
    # No second importance weight: importance auto or none.
    "own_importance_ratio": None,
    # This loss_aggregation and no other.
    "loss_aggregation": None,
    # Default distances below and above 1 at which a ratio is clipped; None: clip_low and clip_high do not apply.
    "clip_range": None,
    # Advantages from a critic, so that an agent names no estimator of its own.
    "no_estimator": _no_estimator,
    # A learner of one rank.
    "single_rank": _single_rank,
    # The prompts of all agents as a critic's state, and hence one tokenizer: checked when a run starts.
    "joint_prompts": None,
}
"""All needs by name. A need without a function is met by the rollout or the learner, or checked when a run starts. The
needs of losses are checked by `marl_ray.learning.losses.loss_needs`."""
WITHOUT_VALUE = {"loss_aggregation": None, "clip_range": None}
"""Needs that are no flags, with their value where they are not declared."""
