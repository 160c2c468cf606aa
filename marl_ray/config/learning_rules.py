"""Combinations of policies, critics, estimators, losses and batches that cannot learn as configured."""

from __future__ import annotations

from collections.abc import Iterator

from marl_ray.config.budget import nodes_per_episode
from marl_ray.config.keys import AGENT_KEYS, key_of
from marl_ray.config.optimization import CLIP_RANGES, LoraConfig
from marl_ray.config.schema import Config
from marl_ray.core.text import pluralize
from marl_ray.credit import BEYOND_SIBLINGS

DIFFER_WITHIN_POLICY = {"policy", "top_p", "max_new_tokens", "estimator"}
"""Settings in which agents that share a policy may differ."""
EQUIVALENT_WHEN_WHITENED = ("marloo", "maremax", "remax", "reinforce_pp")
NEEDS_A_GROUP = ("magrpo", "marloo", "maremax", "grpo")


def learning_problems(config: Config) -> Iterator[str]:
    """Yield one line per problem, with the key to change."""
    yield from _loss_problems(config)
    yield from _optimizer_problems(config)
    yield from _lora_problems(config)
    yield from _critic_problems(config)
    yield from _policy_problems(config)
    yield from _unused_settings(config)
    yield from _early_termination_problems(config)
    for number in range(config.num_agents):
        yield from _credit_problems(config, number)


def _policy_problems(config: Config) -> Iterator[str]:
    """Agents that share a policy must agree in all settings of its generators and its learner."""
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


def _critic_problems(config: Config) -> Iterator[str]:
    critic, section, optimizer = config.credit.critic, config.algorithm, config.optimizer
    completions = config.rollout.num_generations * config.rollout.rollout_buffer_size
    if critic == "none":
        return
    if config.rollout.num_turns > 1 and config.rollout.handoff != "all":
        yield (
            f"{section}.critic {critic} needs the continuation of every completion, and handoff "
            f"{config.rollout.handoff} continues only one of them: set {section}.handoff to all (with num_generations "
            "1 an episode is a chain)"
        )
    if config.rollout.dynamic_sampling:
        yield (
            f"{section}.dynamic_sampling skips groups of equal returns, and {section}.critic {critic} learns from them "
            "too: set it to false"
        )
    if config.credit.normalize_advantages and completions == 1:
        yield (
            f"{section}.normalize_advantages compares the completions of a batch, and with num_generations 1 and "
            "rollout_buffer_size 1 there is one: raise one of them, or set it to false"
        )
    for number, agent in enumerate(config.agents):
        ranks, estimator = key_of(config, number, "learner.ranks"), key_of(config, number, "estimator")
        if agent.learner.ranks > 1:
            yield (
                f"{ranks} is {agent.learner.ranks}, and a critic has one rank: set it to 1, or {section}.critic to none"
            )
        if agent.estimator != section:
            yield (
                f"{estimator} {agent.estimator} compares siblings, and {section}.critic {critic} compares returns with "
                "a value: leave one of them out"
            )
        if agent.reference_kl_coef and optimizer.reference_kl != "k3_in_loss":
            yield (
                f"{section}.reference_kl {optimizer.reference_kl} would change rewards after the critic has learned "
                "from them: set it to k3_in_loss"
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


def _loss_problems(config: Config) -> Iterator[str]:
    optimizer, section = config.optimizer, config.algorithm
    loss, groups = optimizer.loss, config.rollout.rollout_buffer_size * nodes_per_episode(config)
    one_step = optimizer.train_batch_size is None or optimizer.train_batch_size >= groups
    if loss in CLIP_RANGES and one_step:
        yield (
            f"{section}.loss {loss} is for several optimizer steps per batch, and there is one, in which all ratios "
            f"are 1: set {section}.train_batch_size below the {pluralize(groups, 'group')} of a step, or loss to "
            "policy_gradient"
        )
    if loss == "m2po" and one_step and config.rollout.max_staleness == 0:
        yield (
            f"{section}.loss m2po is for stale tokens, and with max_staleness 0 and one optimizer step per batch there "
            f"are none: set {section}.max_staleness above 0, or loss to policy_gradient"
        )
    if loss == "m2po" and optimizer.importance in ("truncate", "mask"):
        yield (
            f"{section}.importance {optimizer.importance} would apply the ratio of loss m2po a second time: set it to "
            "auto"
        )
    if loss == "gspo" and config.credit.loss_aggregation != "sequence_sum":
        yield (
            f"{section}.loss gspo averages over the tokens of a completion itself: set {section}.loss_aggregation to "
            f"sequence_sum, not {config.credit.loss_aggregation}"
        )


def _unused_settings(config: Config) -> Iterator[str]:
    """Settings that have no effect without another setting."""
    credit, optimizer, rollout, section = config.credit, config.optimizer, config.rollout, config.algorithm
    if credit.critic == "none":
        for name, given in (
            ("critic_target", credit.critic_target != "td"),
            ("critic_learning_rate", optimizer.critic_learning_rate is not None),
        ):
            if given:
                yield f"{section}.{name} is for a critic, and there is none: set {section}.critic, or leave it out"
    if optimizer.reference_kl != "k1_in_reward" and not any(agent.reference_kl_coef for agent in config.agents):
        yield (
            f"{section}.reference_kl is {optimizer.reference_kl}, but there is no reference policy: set "
            f"{section}.reference_kl_coef above 0, or leave it out"
        )
    for name in ("clip_low", "clip_high"):
        if getattr(optimizer, name) is not None and optimizer.loss not in CLIP_RANGES:
            yield f"{section}.{name} is for loss {' and '.join(CLIP_RANGES)}, not {optimizer.loss}: leave it out"
    if credit.counterfactual != "empty" and all(agent.estimator != "difference" for agent in config.agents):
        yield (
            f"{section}.counterfactual {credit.counterfactual} is for estimator difference, which no agent has: leave "
            "it out"
        )
    if rollout.max_extra_draws is not None and not rollout.dynamic_sampling:
        yield (
            f"{section}.max_extra_draws is for dynamic_sampling: set {section}.dynamic_sampling to true, or leave it "
            "out"
        )
    if credit.overlong_buffer and credit.overlong != "penalty":
        yield f"{section}.overlong_buffer is for overlong penalty, not {credit.overlong}: leave it out"


def _early_termination_problems(config: Config) -> Iterator[str]:
    """In a tree, branches that end early have returns of fewer turns than their siblings or other groups."""
    rollout, section, critic = config.rollout, config.algorithm, config.credit.critic
    if rollout.handoff != "all" or rollout.early_termination_threshold is None or rollout.num_turns == 1:
        return
    if rollout.num_turns > 2:  # at the root all branches end or none does; below it they end one by one
        yield (
            f"{section}.early_termination_threshold with handoff all and {rollout.num_turns} turns would rank a branch "
            "that ended early below its siblings, because its return has fewer turns: set it to null, or num_turns to 2"
        )
    across_groups = [
        agent.estimator
        for agent in config.agents
        if agent.estimator == "mareinforce" or BEYOND_SIBLINGS.get(agent.estimator) == "batch"
    ] + ([f"critic {critic}"] if critic != "none" else [])
    for name in across_groups:
        yield (
            f"{section}.early_termination_threshold with handoff all would let {name} compare groups that ended early "
            "with groups that continued, whose returns have more turns: set it to null"
        )


def _credit_problems(config: Config, number: int) -> Iterator[str]:
    agent, section = config.agents[number], config.algorithm
    group, whitened = config.rollout.num_generations, config.credit.normalize_advantages
    name, key = agent.estimator, key_of(config, number, "estimator")
    max_new_tokens = f"{key_of(config, number, 'max_new_tokens')} {agent.max_new_tokens}"
    baseline = BEYOND_SIBLINGS.get(name)
    if config.credit.overlong_buffer > agent.max_new_tokens:
        yield f"{section}.overlong_buffer is {config.credit.overlong_buffer}, more than {max_new_tokens}: lower it"
    if baseline in ("greedy", "counterfactual") and config.rollout.handoff == "all" and config.rollout.num_turns > 1:
        yield (
            f"{key} {name} uses the reward of a joint action that is not continued, and with handoff all siblings are "
            f"ranked by their continuations: set {section}.handoff to random or best, or num_turns to 1"
        )
    if baseline == "batch":
        if config.rollout.dynamic_sampling:
            yield (
                f"{key} {name} learns from groups of equal returns too, and {section}.dynamic_sampling would skip "
                "them: set it to false"
            )
        if agent.reference_kl_coef and config.optimizer.reference_kl != "k3_in_loss":
            yield (
                f"{key} {name} needs the returns of a batch before the learner, which computes the KL term, has them: "
                f"set {section}.reference_kl to k3_in_loss"
            )
        if group * config.rollout.rollout_buffer_size == 1:
            yield (
                f"{key} {name} compares the completions of a batch, and with num_generations 1 and rollout_buffer_size "
                f"1 there is one: raise one of them, or set {key} to mareinforce"
            )
    if baseline == "counterfactual" and config.credit.counterfactual == "median" and group == 1:
        yield (
            f"{section}.counterfactual median is a completion of the group, and {section}.num_generations is 1: set it "
            "to 2 or more, or counterfactual to empty"
        )
    if group == 1 and config.credit.critic == "none" and (name in NEEDS_A_GROUP or whitened):
        yield (
            f"{section}.num_generations is {group}, but {name} compares the completions of a group: set it to 2 or "
            f"more, or {key} to mareinforce"
        )
    if whitened and name in EQUIVALENT_WHEN_WHITENED:
        yield (
            f"{section}.normalize_advantages makes {name} the same as magrpo (each is an affine map of the returns): "
            f"set it to false, or use {key} magrpo"
        )
    one_baseline = config.num_agents == 1 or config.rollout.joint_mode == "cross"
    if whitened and baseline == "counterfactual" and one_baseline:
        yield (
            f"{section}.normalize_advantages makes {name} the same as magrpo if all siblings have one baseline, as "
            f"with joint_mode cross or one agent: set it to false, or use {key} magrpo"
        )
    if config.model.max_length <= agent.max_new_tokens:
        yield (
            f"model.max_length is {config.model.max_length}, no room for a prompt beside {max_new_tokens}: raise the "
            "one or lower the other"
        )
