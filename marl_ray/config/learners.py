"""Whose weights an agent plays with, and what its learner measures returns against: what goes together."""

from __future__ import annotations

from marl_ray.config.keys import AGENT_KEYS
from marl_ray.config.requirements import require, where
from marl_ray.config.schema import Config

OWN_WITH_SHARED_POLICY = {"policy", "top_p", "max_new_tokens", "estimator"}
"""Settings in which agents of one policy may differ."""


def shared_policy(given: int | None, number: int) -> int | None:
    """Whose policy agent `number` plays with, of the setting `policy`; None: its own."""
    require(
        given is None or given <= number,
        f"policy of agent {number} is {given}: it should be the number of an agent before it, or null for a policy of "
        "its own",
    )
    return None if given == number else given


def check_policies(config: Config) -> None:
    """Agents of one policy are alike in all that its generators and its learner know of."""
    for number, agent in enumerate(config.agents):
        if agent.policy is None:
            continue
        first = config.agents[agent.policy]
        require(
            first.policy is None,
            f"policy of agent {number} is {agent.policy}, and agent {agent.policy} plays with that of agent "
            f"{first.policy}: set it to {first.policy}",
        )
        keys = AGENT_KEYS.keys() - OWN_WITH_SHARED_POLICY | {"generator", "learner"}
        if agent.reference_kl_coef:  # the learner ranks again what has been credited
            keys |= {"max_new_tokens", "estimator"}
        for key in sorted(keys):
            theirs, own = getattr(first, key), getattr(agent, key)
            name = f"resources.{key}" if key in ("generator", "learner") else key
            require(
                theirs == own,
                f"agents.{number}.{name} differs from that of agent {agent.policy}, whose policy it shares: leave it "
                f"out, or give agent {number} a policy of its own",
            )


def check_critic(config: Config) -> None:
    """What a critic needs, and settings that only a critic has."""
    critic, section, optimizer = config.credit.critic, config.algorithm, config.optimizer
    if critic == "none":
        for name, given in (
            ("critic_target", config.credit.critic_target != "td"),
            ("critic_learning_rate", optimizer.critic_learning_rate is not None),
        ):
            require(
                not given, f"{section}.{name} is for a critic, and there is none: set {section}.critic, or leave it out"
            )
        return
    require(
        config.rollout.num_turns == 1 or config.rollout.handoff == "all",
        f"{section}.critic {critic} needs to know what followed each answer, and handoff {config.rollout.handoff} goes "
        f"on from one of them: set {section}.handoff to all (with num_generations 1 an episode is a chain)",
    )
    require(
        not config.rollout.dynamic_sampling,
        f"{section}.dynamic_sampling skips groups of equal returns, and {section}.critic {critic} learns from them "
        "too: turn it off",
    )
    require(
        not config.credit.normalize_advantages,
        f"{section}.normalize_advantages takes the mean of siblings away, and with it the value that {section}.critic "
        f"{critic} measures them against: turn it off",
    )
    for number, agent in enumerate(config.agents):
        require(
            agent.estimator == section,
            f"{where(config, number, 'estimator')} {agent.estimator} compares siblings, and {section}.critic {critic} "
            "measures them against a value: leave one of them out",
        )
        require(
            not agent.reference_kl_coef or optimizer.reference_kl == "k3_in_loss",
            f"{section}.reference_kl {optimizer.reference_kl} would change rewards that the critic has learned from: "
            "set it to k3_in_loss",
        )
