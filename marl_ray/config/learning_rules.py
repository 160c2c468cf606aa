"""Combinations of policies, critics, estimators, losses and batches that cannot learn as configured.

`marl_ray.credit.requirements` records the needs of every estimator, loss and critic, which are checked in one loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from marl_ray.config.budget import nodes_per_episode
from marl_ray.config.keys import AGENT_KEYS, key_of
from marl_ray.config.optimization import CLIP_RANGES, LoraConfig
from marl_ray.config.schema import Config
from marl_ray.core.text import pluralize
from marl_ray.credit.requirements import (
    CRITIC_REQUIREMENTS,
    LOSS_REQUIREMENTS,
    Requirements,
    estimator_requirements,
)

DIFFER_WITHIN_POLICY = {"policy", "top_p", "max_new_tokens", "estimator"}
"""Settings in which agents that share a policy may differ."""


def _ends_branches_early(config: Config) -> bool:
    """Return whether branches of a tree may end early, with returns of fewer turns than other branches."""
    rollout = config.rollout
    return rollout.handoff == "all" and rollout.early_termination_threshold is not None and rollout.num_turns > 1


def learning_problems(config: Config) -> Iterator[str]:
    """Yield one line per problem, with the key to change."""
    yield from _requirement_problems(config)
    yield from _whitening_problems(config)
    yield from _optimizer_problems(config)
    yield from _lora_problems(config)
    yield from _policy_problems(config)
    yield from _unused_settings(config)
    yield from _length_problems(config)


def _requirement_problems(config: Config) -> Iterator[str]:
    """Check the needs of the loss, the critic and every agent's estimator. A critic replaces estimators."""
    section, critic = config.algorithm, config.credit.critic
    for number, agent in enumerate(config.agents):
        subjects = [(f"{section}.loss {config.optimizer.loss}", LOSS_REQUIREMENTS[config.optimizer.loss])]
        if critic == "none":
            estimator = f"{key_of(config, number, 'estimator')} {agent.estimator}"
            subjects.append((estimator, estimator_requirements(agent.estimator)))
        else:
            subjects.append((f"{section}.critic {critic}", CRITIC_REQUIREMENTS[critic]))
        for subject, needs in subjects:
            for field in dataclasses.fields(Requirements):
                value = getattr(needs, field.name)
                if value != field.default and (problem := _violation(field.name, value, subject, config, number)):
                    yield problem
    if _ends_branches_early(config) and config.rollout.num_turns > 2:
        # At the root all branches end or none does; below it they end one by one.
        yield (
            f"{section}.early_termination_threshold with handoff all and {config.rollout.num_turns} turns would rank a "
            "branch that ended early below its siblings, because its return has fewer turns: set it to null, or "
            "num_turns to 2"
        )


def _violation(need: str, value: Any, subject: str, config: Config, number: int) -> str | None:
    """Return the problem if the config does not meet a need of `subject`, a field of `Requirements`, for an agent.

    `greedy_sample` and `clip_range` are met by the rollout and the loss; `parallel_agents` is checked with the
    environment, when a run starts.
    """
    agent, section, rollout, optimizer = config.agents[number], config.algorithm, config.rollout, config.optimizer
    estimator, name = key_of(config, number, "estimator"), subject.rpartition(" ")[2]
    batch = rollout.num_generations * rollout.rollout_buffer_size
    groups = rollout.rollout_buffer_size * nodes_per_episode(config)
    one_step = optimizer.train_batch_size is None or optimizer.train_batch_size >= groups
    match need:
        case "siblings" if rollout.num_generations == 1:
            return (
                f"{section}.num_generations is 1, but {name} compares the completions of a group: set it to 2 or more, "
                f"or {estimator} to mareinforce"
            )
        case "counterfactual_sample" if config.credit.counterfactual == "median" and rollout.num_generations == 1:
            return (
                f"{section}.counterfactual median is a completion of the group, and {section}.num_generations is 1: "
                "set it to 2 or more, or counterfactual to empty"
            )
        case "whole_batch" if batch == 1:
            return (
                f"{subject} compares the completions of a batch, and with num_generations 1 and rollout_buffer_size 1 "
                f"there is one: raise one of them, or set {estimator} to mareinforce"
            )
        case "immediate_rewards" if rollout.handoff == "all" and rollout.num_turns > 1:
            return (
                f"{subject} uses the reward of a joint action that is not continued, and with handoff all siblings are "
                f"ranked by their continuations: set {section}.handoff to random or best, or num_turns to 1"
            )
        case "full_tree" if rollout.handoff != "all" and rollout.num_turns > 1:
            return (
                f"{subject} needs the continuation of every completion, and handoff {rollout.handoff} continues only "
                f"one of them: set {section}.handoff to all (with num_generations 1 an episode is a chain)"
            )
        case "equal_return_groups" if rollout.dynamic_sampling:
            return (
                f"{subject} learns from groups of equal returns too, and {section}.dynamic_sampling would skip them: "
                "set it to false"
            )
        case "fixed_returns" if agent.reference_kl_coef and optimizer.reference_kl != "k3_in_loss":
            return (
                f"{subject} needs the final returns of a batch, and {section}.reference_kl {optimizer.reference_kl} "
                "would change them in the learner: set it to k3_in_loss"
            )
        case "complete_returns" if _ends_branches_early(config):
            return (
                f"{section}.early_termination_threshold with handoff all would let {subject} compare groups that ended "
                "early with groups that continued, whose returns have more turns: set it to null"
            )
        case "magrpo_if_whitened" if config.credit.normalize_advantages:
            return (
                f"{section}.normalize_advantages makes {name} the same as magrpo (each is an affine map of the "
                f"returns): set it to false, or use {estimator} magrpo"
            )
        case "several_optimizer_steps" if one_step:
            return (
                f"{subject} is for several optimizer steps per batch, and there is one, in which all ratios are 1: set "
                f"{section}.train_batch_size below the {pluralize(groups, 'group')} of a step, or loss to "
                "policy_gradient"
            )
        case "off_policy_tokens" if one_step and rollout.max_staleness == 0:
            return (
                f"{subject} is for stale tokens, and with max_staleness 0 and one optimizer step per batch there are "
                f"none: set {section}.max_staleness above 0, or loss to policy_gradient"
            )
        case "own_importance_ratio" if optimizer.importance in ("truncate", "mask"):
            return (
                f"{section}.importance {optimizer.importance} would apply the ratio of loss {name} a second time: set "
                "it to auto"
            )
        case "loss_aggregation" if config.credit.loss_aggregation != value:
            return (
                f"{subject} averages over the tokens of a completion itself: set {section}.loss_aggregation to "
                f"{value}, not {config.credit.loss_aggregation}"
            )
        case "no_estimator" if agent.estimator != section:
            return (
                f"{estimator} {agent.estimator} compares siblings, and {subject} compares returns with a value: leave "
                "one of them out"
            )
        case "single_rank" if agent.learner.ranks > 1:
            ranks = key_of(config, number, "learner.ranks")
            return (
                f"{ranks} is {agent.learner.ranks}, and {subject} has one rank: set it to 1, or {section}.critic to "
                "none"
            )
    return None


def _whitening_problems(config: Config) -> Iterator[str]:
    rollout, section = config.rollout, config.algorithm
    if not config.credit.normalize_advantages:
        return
    if config.credit.critic != "none":
        if rollout.num_generations * rollout.rollout_buffer_size == 1:
            yield (
                f"{section}.normalize_advantages compares the completions of a batch, and with num_generations 1 and "
                "rollout_buffer_size 1 there is one: raise one of them, or set it to false"
            )
        return
    if rollout.num_generations == 1:
        yield (
            f"{section}.normalize_advantages compares the completions of a group, and {section}.num_generations is 1: "
            "set it to 2 or more, or normalize_advantages to false"
        )
    for number, agent in enumerate(config.agents):
        one_baseline = config.num_agents == 1 or rollout.joint_mode == "cross"
        if estimator_requirements(agent.estimator).counterfactual_sample and one_baseline:
            yield (
                f"{section}.normalize_advantages makes {agent.estimator} the same as magrpo if all siblings have one "
                "baseline, as with joint_mode cross or one agent: set it to false, or use "
                f"{key_of(config, number, 'estimator')} magrpo"
            )


def _optimizer_problems(config: Config) -> Iterator[str]:
    optimizer, section = config.optimizer, config.algorithm
    if all(agent.learning_rate == 0 for agent in config.agents):
        yield f"{section}.learning_rate is 0 for every agent, so nothing would be learned: raise one of them"
    for number, agent in enumerate(config.agents):
        if agent.learner.ranks > 1 and optimizer.optimizer != "adamw":
            yield (
                f"{section}.optimizer {optimizer.optimizer} needs unsharded weights, and "
                f"{key_of(config, number, 'learner.ranks')} is {agent.learner.ranks}: set it to 1, or the optimizer to "
                "adamw"
            )
    if optimizer.optimizer != "adafactor":
        return
    if (optimizer.adam_beta1, optimizer.adam_beta2) != (0.9, 0.999):
        yield (
            f"{section}.adam_beta1 and adam_beta2 are for AdamW, and {section}.optimizer is adafactor: leave them out"
        )
    from_zero = "lora.rank" if config.lora.rank else f"{section}.critic" if config.credit.critic != "none" else ""
    if from_zero:
        yield (
            f"{section}.optimizer adafactor scales steps by the size of the weights, and {from_zero} adds weights that "
            "start at 0 and would stay near it: set it to adamw or adamw_8bit"
        )


def _lora_problems(config: Config) -> Iterator[str]:
    lora = config.lora
    if not lora.rank:
        if lora != LoraConfig():
            yield "lora.rank is 0, which disables adapters and all other settings of lora: set it, or leave them out"
        return
    if any(agent.learner.offload_reference for agent in config.agents):
        yield (
            "resources.learner.offload_reference: with lora the reference policy is the base model, which is in memory "
            "anyway: leave it out"
        )
    if not lora.share_base:
        return
    for number, agent in enumerate(config.agents):
        if agent.learner.ranks > 1:
            yield (
                f"lora.share_base is for learners in one process, and {key_of(config, number, 'learner.ranks')} is "
                f"{agent.learner.ranks}: leave one of them out"
            )
    if len(config.learner_groups) == len(config.policies):
        yield (
            "lora.share_base is for policies with the same base model and the same resources.learner, and no two "
            "policies of this run have both: leave it out, or name one model for them"
        )


def _policy_problems(config: Config) -> Iterator[str]:
    """Yield an error per setting of generator or learner in which agents that share a policy differ."""
    for number, agent in enumerate(config.agents):
        if agent.policy is None:
            continue
        first = config.agents[agent.policy]
        if first.policy is not None:
            yield (
                f"policy of agent {number} is {agent.policy}, and agent {agent.policy} shares the policy of agent "
                f"{first.policy}: set it to {first.policy}"
            )
        keys = AGENT_KEYS.keys() - DIFFER_WITHIN_POLICY | {"generator", "learner"}
        if agent.reference_kl_coef:  # the learner recomputes advantages
            keys |= {"max_new_tokens", "estimator"}
        for key in sorted(keys):
            if getattr(first, key) != getattr(agent, key):
                name = f"resources.{key}" if key in ("generator", "learner") else key
                yield (
                    f"agents.{number}.{name} differs from that of agent {agent.policy}, whose policy it shares: leave "
                    f"it out, or give agent {number} a policy of its own"
                )


def _unused_settings(config: Config) -> Iterator[str]:
    """Check for settings that have no effect without another setting."""
    credit, optimizer, rollout, section = config.credit, config.optimizer, config.rollout, config.algorithm
    no_critic = f"is for a critic, and there is none: set {section}.critic, or leave it out"
    not_clipped = f"is for loss {' and '.join(CLIP_RANGES)}, not {optimizer.loss}: leave it out"
    for key, is_set, is_used, problem in (
        ("critic_target", credit.critic_target != "td", credit.critic != "none", no_critic),
        ("critic_learning_rate", optimizer.critic_learning_rate is not None, credit.critic != "none", no_critic),
        ("clip_low", optimizer.clip_low is not None, optimizer.loss in CLIP_RANGES, not_clipped),
        ("clip_high", optimizer.clip_high is not None, optimizer.loss in CLIP_RANGES, not_clipped),
        (
            "reference_kl",
            optimizer.reference_kl != "k1_in_reward",
            any(agent.reference_kl_coef for agent in config.agents),
            f"is {optimizer.reference_kl}, but there is no reference policy: set {section}.reference_kl_coef above 0, "
            "or leave it out",
        ),
        (
            f"counterfactual {credit.counterfactual}",
            credit.counterfactual != "empty",
            any(estimator_requirements(agent.estimator).counterfactual_sample for agent in config.agents),
            "is for estimator difference, which no agent has: leave it out",
        ),
        (
            "max_extra_draws",
            rollout.max_extra_draws is not None,
            rollout.dynamic_sampling,
            f"is for dynamic_sampling: set {section}.dynamic_sampling to true, or leave it out",
        ),
        (
            "overlong_buffer",
            credit.overlong_buffer > 0,
            credit.overlong == "penalty",
            f"is for overlong penalty, not {credit.overlong}: leave it out",
        ),
    ):
        if is_set and not is_used:
            yield f"{section}.{key} {problem}"


def _length_problems(config: Config) -> Iterator[str]:
    for number, agent in enumerate(config.agents):
        max_new_tokens = f"{key_of(config, number, 'max_new_tokens')} {agent.max_new_tokens}"
        if config.credit.overlong_buffer > agent.max_new_tokens:
            buffer = f"{config.algorithm}.overlong_buffer"
            yield f"{buffer} is {config.credit.overlong_buffer}, more than {max_new_tokens}: lower it"
        if config.model.max_length <= agent.max_new_tokens:
            yield (
                f"model.max_length is {config.model.max_length}, no room for a prompt beside {max_new_tokens}: raise "
                "the one or lower the other"
            )
