"""Combinations of policies, critics, estimators, losses and batches that cannot learn as configured.

Losses, estimators and critics declare their needs, which `marl_ray.credit.needs` checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from operator import attrgetter

from marl_ray.config.algorithm_section import AlgorithmConfig
from marl_ray.config.budget import nodes_per_episode
from marl_ray.config.keys import agent_keys, key_of
from marl_ray.config.lora_section import MAX_SERVED_RANK, LoraConfig
from marl_ray.config.resource_sections import takes_turns
from marl_ray.config.schema import Config
from marl_ray.core.text import pluralize
from marl_ray.credit import CRITICS, ESTIMATORS, requirements
from marl_ray.credit.requirements import (
    Choice,
    Requirements,
    critic_requirements,
    estimator_requirements,
)
from marl_ray.learning import LOSSES
from marl_ray.learning.losses import loss_class

DEFAULTS = AlgorithmConfig()
DIFFER_WITHIN_POLICY = {
    *("policy", "top_p", "max_new_tokens", "min_new_tokens", "estimator", "preference_beta"),
    *("system_prompt", "stop", "chat_template_kwargs", "reference_model", "json_schema"),
}
"""Settings in which agents that share a policy may differ."""


def learning_problems(config: Config) -> Iterator[str]:
    """Yield a message per problem, with the key to change."""
    yield from _turn_problems(config)
    for number in range(config.num_agents):
        for choice in _choices(config, number):
            yield from choice.requirements.problems(choice)
    yield from _optimizer_problems(config)
    yield from _lora_problems(config)
    yield from _policy_problems(config)
    yield from _learn_in_turns_problems(config)
    yield from _unused_options(config)
    yield from _unused_settings(config)
    yield from _length_problems(config)


def _choices(config: Config, number: int) -> Iterator[Choice]:
    """Yield the choices that an agent learns with, and their requirements."""
    section = config.algorithm
    critic = config.training.critic

    def choice(key: str, value: str, needs: Requirements) -> Choice:
        return Choice(
            config=config,
            number=number,
            key=key,
            value=value,
            requirements=needs,
            groups_per_step=config.training.rollout_buffer_size * nodes_per_episode(config),
            ends_early=_ends_branches(config) and config.compat == "none",
            key_of=partial(key_of, config, number),
        )

    if number == 0:  # all agents have the same loss
        yield choice(f"{section}.loss", config.training.loss, loss_class(config.training.loss).requirements)
    if critic == "none":
        estimator = config.agents[number].estimator
        yield choice(key_of(config, number, "estimator"), estimator, estimator_requirements(estimator))
    else:  # replaces the estimator
        yield choice(f"{section}.critic", critic, critic_requirements(critic))
    if config.training.normalize_advantages:
        whitening = requirements.GROUP_WHITENING if critic == "none" else requirements.BATCH_WHITENING
        yield choice(f"{section}.normalize_advantages", "", whitening)
    if config.lora.rank:
        yield choice("lora.rank", "", requirements.LORA)


def _turn_problems(config: Config) -> Iterator[str]:
    weights, section, rollout = config.training.turn_gradient_weights, config.algorithm, config.training
    if len(weights) != rollout.num_turns:
        values, turns = pluralize(len(weights), "value"), pluralize(rollout.num_turns, "turn")
        yield f"{section}.turn_gradient_weights has {values} for {turns}: give one per turn"
    if min(weights) < 0 or max(weights) == 0:
        yield f"""{section}.turn_gradient_weights {list(weights)}: no weight should be negative, and not all 0, or
        nothing is learned"""
    if len(rollout.group_sizes) != rollout.num_turns:
        values, turns = pluralize(len(rollout.group_sizes), "value"), pluralize(rollout.num_turns, "turn")
        yield f"{section}.num_generations has {values} for {turns}: give one per turn, or one number for all"
    if len(set(rollout.group_sizes)) > 1 and rollout.early_termination_threshold is not None:
        yield f"""{section}.early_termination_threshold ends nodes by their mean reward, and with num_generations
        {list(rollout.group_sizes)} nodes of different turns do not compare: set it to null, or use external.stop"""
    if config.external.stop != "never" and rollout.num_turns == 1:
        yield f"""external.stop {config.external.stop} ends an episode before its last turn, and {section}.num_turns is
        1: set it to never"""
    if config.external.stop != "never" and config.training.critic != "none":
        yield f"""external.stop {config.external.stop} leaves no next prompts, whose value {section}.critic
        {config.training.critic} needs: set external.stop to never, or {section}.critic to none"""
    if _ends_branches(config) and rollout.num_turns > 2 and config.compat == "none":
        # At the root all branches end or none does; below it they end one by one.
        yield f"""{section}.early_termination_threshold with handoff all and {rollout.num_turns} turns would rank a
        branch that ended early below its siblings, because its return has fewer turns: set it to null, or num_turns to
        2"""


def _ends_branches(config: Config) -> bool:
    """Return whether some branches of a tree may have fewer turns than others."""
    rollout = config.training
    return rollout.handoff == "all" and rollout.early_termination_threshold is not None and rollout.num_turns > 1


def unequal_returns(config: Config) -> str | None:
    """Return a note if `compat: comlrl` allows returns over different numbers of turns to be compared, else None."""
    comparing = config.training.critic != "none" or any(
        estimator_requirements(agent.estimator).complete_returns for agent in config.agents
    )
    if config.compat == "none" or not _ends_branches(config) or not (comparing or config.training.num_turns > 2):
        return None
    threshold = config.training.early_termination_threshold
    return (
        f"{config.algorithm}.early_termination_threshold {threshold:g} ends branches, as in CoMLRL: "
        "their returns have fewer turns than those they are compared with. null plays all turns"
    )


def unused_discount(config: Config) -> str | None:
    """Return a note if `discount` is set and changes no gradient, else None."""
    section, rollout = config.algorithm, config.training
    if config.training.discount == 1.0 or (rollout.num_turns > 1 and rollout.handoff == "all"):
        return None
    if rollout.num_turns == 1:
        return f"{section}.discount {config.training.discount} has no effect: there is one turn"
    sizes = [rollout.group_sizes[0], *(1 for _ in rollout.group_sizes[1:])]
    return (
        f"{section}.discount {config.training.discount} changes logged returns only: with handoff {rollout.handoff} no "
        f"turn is credited with later turns. {section}.handoff all does so, at the same budget with num_generations "
        f"{sizes}"
    )


def _optimizer_problems(config: Config) -> Iterator[str]:
    optimizer, section = config.training, config.algorithm
    if all(agent.learning_rate == 0 for agent in config.agents):
        yield f"{section}.learning_rate is 0 for every agent, so nothing would be learned: raise one of them"
    for number, agent in enumerate(config.agents):
        if agent.learner.ranks > 1 and optimizer.optimizer != "adamw":
            yield f"""{section}.optimizer {optimizer.optimizer} needs unsharded weights, and
            {key_of(config, number, "learner.ranks")} is {agent.learner.ranks}: set it to 1, or the optimizer to
            adamw"""


def _lora_problems(config: Config) -> Iterator[str]:
    lora = config.lora
    if not lora.rank:
        if lora != LoraConfig():
            yield "lora.rank is 0, which disables adapters and all other settings of lora: set it, or leave them out"
        return
    if any(agent.learner.offload_reference and agent.reference_model is None for agent in config.agents):
        yield """resources.learner.offload_reference: with lora the reference policy is the base model, which is in
        memory anyway: leave it out"""
    if lora.serves_adapters and lora.rank > MAX_SERVED_RANK:
        yield f"""lora.in_engine: vLLM serves adapters up to rank {MAX_SERVED_RANK}, and lora.rank is {lora.rank}: lower
        it, or set in_engine to false"""
    yield from _shared_engine_problems(config)
    if not lora.share_base:
        return
    for number, agent in enumerate(config.agents):
        if agent.learner.ranks > 1:
            yield f"""lora.share_base is for learners in one process, and {key_of(config, number, "learner.ranks")} is
            {agent.learner.ranks}: leave one of them out"""
    if len(config.learner_groups) == len(config.policies):
        yield """lora.share_base is for policies with the same base model and the same resources.learner, and no two
        policies of this run have both: leave it out, or name one model for them"""


def _shared_engine_problems(config: Config) -> Iterator[str]:
    if not config.lora.share_engine:
        return
    if config.lora.in_engine is False:
        yield "lora.share_engine is for engines that have an adapter per policy, and lora.in_engine is false"
    if len(config.generator_groups) == len(config.policies):
        yield """lora.share_engine is for policies with the same base model and the same resources.generator, and no two
        policies of this run have both: leave it out, or name one model for them"""
    if takes_turns(config.resources.residency):
        yield f"""lora.share_engine: with resources.colocate {config.resources.residency} an engine sleeps while its
        learner uses the device, and other policies would wait: set colocate to auto or resident"""
    if config.training.inflight == "drain":
        yield f"""lora.share_engine: {config.algorithm}.inflight drain would stop the requests of all policies for the
        update of one: set it to continue"""


def _policy_problems(config: Config) -> Iterator[str]:
    """Check that agents that share a policy agree on the settings of its generators and its learner."""
    for number, agent in enumerate(config.agents):
        first = agent if agent.policy is None else config.agents[agent.policy]
        if first.policy is not None:
            yield f"""policy of agent {number} is {agent.policy}, and agent {agent.policy} shares the policy of agent
            {first.policy}: set it to {first.policy}"""
        keys = agent_keys(config.algorithm).keys() - DIFFER_WITHIN_POLICY
        if agent.reference_kl_coef:  # the learner recomputes advantages
            keys |= {"max_new_tokens", "estimator"}
        for key in sorted(keys):
            value = attrgetter(key)
            if value(first) != value(agent):
                yield f"""agents.{number}.{key} differs from that of agent {agent.policy}, whose policy it shares:
                leave it out, or give agent {number} a policy of its own"""


def _learn_in_turns_problems(config: Config) -> Iterator[str]:
    if not config.training.learn_in_turns:
        return
    key = f"{config.algorithm}.learn_in_turns"
    if len(config.learning_policies) < 2:
        yield f"{key} is {config.training.learn_in_turns}, and fewer than two policies learn: set it to 0"
    if config.training.dynamic_sampling:
        yield f"""{key} is {config.training.learn_in_turns}, and with dynamic_sampling the step of an episode, and so
        its learner, is not known when it is judged: set {config.algorithm}.dynamic_sampling to false"""


def _unused_options(config: Config) -> Iterator[str]:
    """Check that the loss, the critic and the estimators have the options that are set."""
    estimators = sorted({agent.estimator for agent in config.agents})
    for kind, chosen, names, options_of in (
        ("loss", [config.training.loss], LOSSES.entries, _loss_options),
        ("critic", [config.training.critic], CRITICS.entries, _critic_options),
        ("estimator", estimators, ESTIMATORS.entries, _estimator_options),
    ):
        owners: dict[str, list[str]] = {}
        for name in names:
            for option in options_of(name):
                owners.setdefault(option, []).append(name)
        for name in chosen:
            for option in options_of(name):
                owners.pop(option, None)
        for option, having in owners.items():
            if getattr(config.training, option) != getattr(DEFAULTS, option):
                yield f"""{config.algorithm}.{option} is for {kind} {", ".join(having)}, not {", ".join(chosen)}: leave
                it out"""


def _loss_options(name: str) -> list[str]:
    return [option.name for option in fields(loss_class(name).default_options())]


def _critic_options(name: str) -> list[str]:
    return critic_requirements(name).options


def _estimator_options(name: str) -> list[str]:
    return estimator_requirements(name).options


def _unused_settings(config: Config) -> Iterator[str]:
    credit, optimizer, rollout, section = config.training, config.training, config.training, config.algorithm
    measured = config.output.measure_cooperation
    if measured != "free" and config.num_agents == 1:
        yield f"""output.measure_cooperation {measured} recombines the answers of several agents, and there is one:
        leave it out"""
    if credit.critic_body == "own" and credit.critic != "iac":
        yield f"{section}.critic_body own is for critic iac, not {credit.critic}: leave it out"
    if optimizer.clip_separately and (credit.critic, credit.critic_body) != ("iac", "shared"):
        yield f"{section}.clip_separately is for critic iac with critic_body shared: leave it out"
    if optimizer.clip_separately and optimizer.max_grad_norm is None:
        yield f"{section}.clip_separately clips to {section}.max_grad_norm, which is null: set it, or leave it out"
    if optimizer.reference_kl != "k1_in_reward" and not any(agent.reference_kl_coef for agent in config.agents):
        yield f"""{section}.reference_kl is {optimizer.reference_kl}, but there is no reference policy: set
        {section}.reference_kl_coef above 0, or leave it out"""
    for number, agent in enumerate(config.agents):
        if agent.reference_model is not None and not agent.reference_kl_coef:
            yield f"""{key_of(config, number, "reference_model")} is {agent.reference_model}, and
            {key_of(config, number, "reference_kl_coef")} is 0: set it above 0, or leave reference_model out"""
    if rollout.max_extra_draws is not None and not rollout.dynamic_sampling:
        yield f"""{section}.max_extra_draws is for dynamic_sampling: set {section}.dynamic_sampling to true, or leave it
        out"""
    if credit.overlong_buffer > 0 and credit.overlong != "penalty":
        yield f"{section}.overlong_buffer is for overlong penalty, not {credit.overlong}: leave it out"
    if optimizer.optimizer == "adafactor" and (optimizer.adam_beta1, optimizer.adam_beta2) != (0.9, 0.999):
        yield f"""{section}.adam_beta1 and adam_beta2 are for AdamW, and {section}.optimizer is adafactor: leave them
        out"""


def _length_problems(config: Config) -> Iterator[str]:
    for number, agent in enumerate(config.agents):
        max_new_tokens = f"{key_of(config, number, 'max_new_tokens')} {agent.max_new_tokens}"
        if (buffer := config.training.overlong_buffer) > agent.max_new_tokens:
            yield f"{config.algorithm}.overlong_buffer is {buffer}, more than {max_new_tokens}: lower it"
        if agent.min_new_tokens > agent.max_new_tokens:
            yield f"""{key_of(config, number, "min_new_tokens")} is {agent.min_new_tokens}, more than {max_new_tokens}:
            lower it"""
        if agent.json_schema and agent.min_new_tokens:
            yield f"""{key_of(config, number, "json_schema")}: a JSON value may be complete before
            {key_of(config, number, "min_new_tokens")} {agent.min_new_tokens}: set min_new_tokens to 0"""
        if "" in agent.stop:
            yield f"{key_of(config, number, 'stop')} has an empty text, which would end every completion: leave it out"
        if config.model.max_length <= agent.max_new_tokens:
            yield f"""model.max_length is {config.model.max_length}, no room for a prompt beside {max_new_tokens}: raise
            the one or lower the other"""
