"""Combinations of policies, critics, estimators and losses that cannot learn as configured.

Losses, estimators and critics declare their requirements, which `marl_ray.credit.requirement_table` checks; `rules.py`
has the table of conditions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial
from operator import attrgetter

from marl_ray.config.agent_section import AgentConfig
from marl_ray.config.algorithm_section import AlgorithmConfig
from marl_ray.config.budget import nodes_per_episode
from marl_ray.config.keys import agent_keys, key_of
from marl_ray.config.rules import ends_branches
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
    yield from _turn_problems(config.training, config.algorithm)
    for number in range(config.num_agents):
        for choice in _choices(config, number):
            yield from choice.requirements.problems(choice)
    yield from _policy_problems(config.agents, config.algorithm)
    yield from _unused_options(config.training, config.agents, config.algorithm)


def _choices(config: Config, number: int) -> Iterator[Choice]:
    """Yield the choices that an agent learns with, and their requirements."""
    section = config.algorithm
    critic = config.training.critic

    def choice(key: str, value: str, required: Requirements) -> Choice:
        return Choice(
            config=config,
            number=number,
            key=key,
            value=value,
            requirements=required,
            groups_per_step=config.training.rollout_buffer_size * nodes_per_episode(config.training, config.num_agents),
            ends_early=ends_branches(config.training) and config.compat == "none",
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


def _turn_problems(training: AlgorithmConfig, section: str) -> Iterator[str]:
    """Check that settings with one value per turn have as many values as there are turns."""
    turns = pluralize(training.num_turns, "turn")
    weights = training.turn_gradient_weights
    sizes = training.group_sizes
    if len(weights) != training.num_turns:
        values = pluralize(len(weights), "value")
        yield f"{section}.turn_gradient_weights has {values} for {turns}: give one per turn"
    if len(sizes) != training.num_turns:
        values = pluralize(len(sizes), "value")
        yield f"{section}.num_generations has {values} for {turns}: give one per turn, or one number for all"


def unequal_returns(config: Config) -> str | None:
    """Return a note if `compat: comlrl` allows returns over different numbers of turns to be compared, else None."""
    if config.compat == "none" or not ends_branches(config.training):
        return None
    compares_returns = config.training.critic != "none"
    for agent in config.agents:
        compares_returns |= estimator_requirements(agent.estimator).complete_returns
    if not compares_returns and config.training.num_turns <= 2:
        return None
    threshold = config.training.early_termination_threshold
    return (
        f"{config.algorithm}.early_termination_threshold {threshold:g} ends branches, as in CoMLRL: "
        "their returns have fewer turns than those they are compared with. null plays all turns"
    )


def unused_discount(training: AlgorithmConfig, section: str) -> str | None:
    """Return a note if `discount` is set and changes no gradient, else None."""
    if training.discount == 1.0 or (training.num_turns > 1 and training.handoff == "all"):
        return None
    if training.num_turns == 1:
        return f"{section}.discount {training.discount} has no effect: there is one turn"
    # One completion in each later turn, so that the tree has as many leaves as the first turn has completions.
    sizes = [1] * training.num_turns
    sizes[0] = training.group_sizes[0]
    return (
        f"{section}.discount {training.discount} changes logged returns only: with handoff {training.handoff} no turn "
        f"is credited with later turns. {section}.handoff all does so, at the same budget with num_generations {sizes}"
    )


def _policy_problems(agents: Sequence[AgentConfig], section: str) -> Iterator[str]:
    """Check that agents that share a policy agree on the settings of its generators and its learner."""
    for number, agent in enumerate(agents):
        first = agent if agent.policy is None else agents[agent.policy]
        if first.policy is not None:
            yield f"""policy of agent {number} is {agent.policy}, and agent {agent.policy} shares the policy of agent
            {first.policy}: set it to {first.policy}"""
        keys = agent_keys(section).keys() - DIFFER_WITHIN_POLICY
        if agent.reference_kl_coef:  # the learner recomputes advantages
            keys |= {"max_new_tokens", "estimator"}
        for key in sorted(keys):
            value = attrgetter(key)
            if value(first) != value(agent):
                yield f"""agents.{number}.{key} differs from that of agent {agent.policy}, whose policy it shares:
                leave it out, or give agent {number} a policy of its own"""


def _unused_options(training: AlgorithmConfig, agents: Sequence[AgentConfig], section: str) -> Iterator[str]:
    """Check that the loss, the critic and the estimators have the options that are set."""
    estimators = sorted({agent.estimator for agent in agents})
    for kind, chosen, names, options_of in (
        ("loss", [training.loss], LOSSES.entries, _loss_options),
        ("critic", [training.critic], CRITICS.entries, _critic_options),
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
            if getattr(training, option) != getattr(DEFAULTS, option):
                yield f"""{section}.{option} is for {kind} {", ".join(having)}, not {", ".join(chosen)}: leave
                it out"""


def _loss_options(name: str) -> list[str]:
    return [option.name for option in fields(loss_class(name).default_options())]


def _critic_options(name: str) -> list[str]:
    return critic_requirements(name).options


def _estimator_options(name: str) -> list[str]:
    return estimator_requirements(name).options
