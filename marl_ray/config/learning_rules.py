"""What goes together of all that says how agents learn: policies, critics, estimators, losses, batches."""

from __future__ import annotations

from marl_ray.config.budget import nodes_per_episode
from marl_ray.config.keys import AGENT_KEYS
from marl_ray.config.optimization import CLIP_RANGES, LoraConfig
from marl_ray.config.requirements import require, where
from marl_ray.config.schema import Config
from marl_ray.core.text import pluralize
from marl_ray.credit import BEYOND_SIBLINGS

OWN_WITH_SHARED_POLICY = {"policy", "top_p", "max_new_tokens", "estimator"}
"""Settings in which agents of one policy may differ."""


EQUIVALENT_WHEN_WHITENED = ("marloo", "maremax", "remax", "reinforce_pp")
NEEDS_A_GROUP = ("magrpo", "marloo", "maremax", "grpo")


def check_learning(config: Config) -> None:
    """All of it. Raises UserError."""
    _check_loss(config)
    _check_optimizer(config)
    _check_critic(config)
    _check_policies(config)
    _check_counterfactual(config)
    _check_sampling(config)
    for number in range(config.num_agents):
        _check_credit(config, number)


def shared_policy(given: int | None, number: int) -> int | None:
    """Whose policy agent `number` plays with, of the setting `policy`; None: its own."""
    require(
        given is None or given <= number,
        f"policy of agent {number} is {given}: it should be the number of an agent before it, or null for a policy of "
        "its own",
    )
    return None if given == number else given


def _check_policies(config: Config) -> None:
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


def _check_critic(config: Config) -> None:
    """What a critic needs, and settings that only a critic has."""
    critic, section, optimizer = config.credit.critic, config.algorithm, config.optimizer
    answers = config.rollout.num_generations * config.rollout.rollout_buffer_size
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
        not config.credit.normalize_advantages or answers > 1,
        f"{section}.normalize_advantages compares the answers of a batch, and with num_generations 1 and "
        "rollout_buffer_size 1 there is one: raise one of them, or turn it off",
    )
    for number, agent in enumerate(config.agents):
        require(
            agent.learner.ranks == 1,
            f"{where(config, number, 'learner.ranks')} is {agent.learner.ranks}, and a critic has one rank: set it to "
            f"1, or {section}.critic to none",
        )
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


def _check_optimizer(config: Config) -> None:
    """Who learns, what of it, and by which optimizer."""
    optimizer, section = config.optimizer, config.algorithm
    require(
        any(agent.learning_rate > 0 for agent in config.agents),
        f"{section}.learning_rate is 0 for every agent, so nothing would be learned: raise one of them",
    )
    require(
        optimizer.optimizer != "adafactor" or (optimizer.adam_beta1, optimizer.adam_beta2) == (0.9, 0.999),
        f"{section}.adam_beta1 and adam_beta2 are AdamW's, and {section}.optimizer is {optimizer.optimizer}: leave "
        "them out",
    )
    from_zero = "lora.rank" if config.lora.rank else f"{section}.critic" if config.credit.critic != "none" else ""
    require(
        optimizer.optimizer != "adafactor" or not from_zero,
        f"{section}.optimizer adafactor steps in proportion to weights, and {from_zero} has some that begin at 0 and "
        "would stay near it: use adamw, or adamw_8bit",
    )
    require(
        bool(config.lora.rank) or config.lora == LoraConfig(),
        "lora.rank is 0, so there are no adapters, and other settings of lora are for those: set it, or leave them out",
    )
    for number, agent in enumerate(config.agents):
        ranks = where(config, number, "learner.ranks")
        require(
            agent.learner.ranks == 1 or optimizer.optimizer == "adamw",
            f"{section}.optimizer {optimizer.optimizer} works on whole weights, and {ranks} is {agent.learner.ranks}: "
            "set it to 1, or the optimizer to adamw",
        )
        require(
            agent.learner.ranks == 1 or not config.lora.share_base,
            f"lora.share_base is for learners in one process, and {ranks} is {agent.learner.ranks}: leave one of them "
            "out",
        )
    require(
        not config.lora.share_base or len(config.learner_groups) < len(config.policies),
        "lora.share_base is for policies that begin at the same model with the same resources.learner, and no two of "
        "this run do: leave it out, or name one model for them",
    )
    require(
        not config.lora.rank or not any(agent.learner.offload_reference for agent in config.agents),
        "resources.learner.offload_reference: with lora the reference is the policy without its adapter, so there is "
        "nothing to off-load: leave it out",
    )


def _check_loss(config: Config) -> None:
    """Losses of ratios that are all 1, and settings that a loss does not have."""
    optimizer, section = config.optimizer, config.algorithm
    loss, groups = optimizer.loss, config.rollout.rollout_buffer_size * nodes_per_episode(config)
    one_step = optimizer.train_batch_size is None or optimizer.train_batch_size >= groups
    require(
        not (loss in CLIP_RANGES and one_step),
        f"{section}.loss {loss} is for several optimizer steps a batch, and there is one, in which all ratios are 1: "
        f"set {section}.train_batch_size below the {pluralize(groups, 'group')} of a step, or loss to policy_gradient",
    )
    require(
        not (loss == "m2po" and one_step and config.rollout.max_staleness == 0),
        f"{section}.loss m2po is for stale tokens, and with max_staleness 0 and one optimizer step a batch there are "
        f"none: set {section}.max_staleness above 0, or loss to policy_gradient",
    )
    require(
        not (loss == "m2po" and optimizer.importance in ("truncate", "mask")),
        f"{section}.importance {optimizer.importance} would weigh tokens a second time with the ratio that loss m2po "
        "weighs them with: set it to auto",
    )
    require(
        not (loss == "gspo" and config.credit.loss_aggregation != "sequence_sum"),
        f"{section}.loss gspo averages over a completion's tokens by itself: set {section}.loss_aggregation to "
        f"sequence_sum, not {config.credit.loss_aggregation}",
    )
    require(
        optimizer.reference_kl == "k1_in_reward" or any(agent.reference_kl_coef for agent in config.agents),
        f"{section}.reference_kl is {optimizer.reference_kl}, but there is no reference policy: set "
        f"{section}.reference_kl_coef above 0, or leave it out",
    )
    for name in ("clip_low", "clip_high"):
        require(
            loss in CLIP_RANGES or getattr(optimizer, name) is None,
            f"{section}.{name} is for loss {' and '.join(CLIP_RANGES)}, not {loss}: leave it out",
        )


def _check_counterfactual(config: Config) -> None:
    given, section = config.credit.counterfactual, config.algorithm
    require(
        given == "empty" or any(agent.estimator == "difference" for agent in config.agents),
        f"{section}.counterfactual {given} is for estimator difference, which no agent has: leave it out",
    )


def _check_sampling(config: Config) -> None:
    rollout, section = config.rollout, config.algorithm
    require(
        rollout.dynamic_sampling or rollout.max_extra_draws is None,
        f"{section}.max_extra_draws is for dynamic_sampling: set {section}.dynamic_sampling to true, or leave it out",
    )
    require(
        not rollout.dynamic_sampling or config.credit.critic == "none",
        f"{section}.dynamic_sampling skips groups of equal returns, and {section}.critic {config.credit.critic} learns "
        "from those too: set it to false",
    )
    for number, agent in enumerate(config.agents):
        require(
            not (rollout.dynamic_sampling and BEYOND_SIBLINGS.get(agent.estimator) == "batch"),
            f"{where(config, number, 'estimator')} {agent.estimator} learns from groups of equal returns too, and "
            f"{section}.dynamic_sampling would skip them: set it to false",
        )


def _check_credit(config: Config, number: int) -> None:
    agent, section = config.agents[number], config.algorithm
    buffer = config.credit.overlong_buffer
    require(
        not buffer or config.credit.overlong == "penalty",
        f"{section}.overlong_buffer is for overlong penalty, not {config.credit.overlong}: leave it out",
    )
    require(
        buffer <= agent.max_new_tokens,
        f"{section}.overlong_buffer is {buffer}, more than {where(config, number, 'max_new_tokens')} "
        f"{agent.max_new_tokens}: lower it",
    )
    group, whitened = config.rollout.num_generations, config.credit.normalize_advantages
    estimator = where(config, number, "estimator")
    looks_at = BEYOND_SIBLINGS.get(agent.estimator)
    require(
        not (
            looks_at in ("greedy", "counterfactual")
            and config.rollout.handoff == "all"
            and nodes_per_episode(config) > 1
        ),
        f"{estimator} {agent.estimator} compares rewards with those of a joint action that is not played on, and with "
        f"handoff all siblings are ranked by what follows: set {section}.handoff to random or best, or num_turns to 1",
    )
    require(
        not (looks_at == "batch" and agent.reference_kl_coef and config.optimizer.reference_kl != "k3_in_loss"),
        f"{estimator} {agent.estimator} compares a batch's returns before the learner, which computes the KL term, has "
        f"them: set {section}.reference_kl to k3_in_loss",
    )
    require(
        not (looks_at == "batch" and group * config.rollout.rollout_buffer_size == 1),
        f"{estimator} {agent.estimator} compares the answers of a batch, and with num_generations 1 and "
        f"rollout_buffer_size 1 there is one: raise one of them, or set {estimator} to mareinforce",
    )
    require(
        not (looks_at == "counterfactual" and config.credit.counterfactual == "median" and group == 1),
        f"{section}.counterfactual median is an answer of the group, and {section}.num_generations is 1: set it to 2 "
        "or more, or counterfactual to empty",
    )
    require(
        group > 1 or config.credit.critic != "none" or (agent.estimator not in NEEDS_A_GROUP and not whitened),
        f"{section}.num_generations is {group}, but {agent.estimator} compares the completions of a group: set it to "
        f"2 or more, or {estimator} to mareinforce",
    )
    require(
        not (whitened and agent.estimator in EQUIVALENT_WHEN_WHITENED),
        f"{section}.normalize_advantages makes {agent.estimator} the same as magrpo (each is an affine map of "
        f"the returns): turn it off, or use {estimator} magrpo",
    )
    alike = config.num_agents == 1 or config.rollout.joint_mode == "cross"
    require(
        not (whitened and looks_at == "counterfactual" and alike),
        f"{section}.normalize_advantages makes {agent.estimator} the same as magrpo where all siblings are compared "
        f"with one reward, as with joint_mode cross or one agent: turn it off, or use {estimator} magrpo",
    )
    require(
        config.model.max_length > agent.max_new_tokens,
        f"model.max_length is {config.model.max_length}, no room for a prompt beside "
        f"{where(config, number, 'max_new_tokens')} {agent.max_new_tokens}: raise the one or lower the other",
    )
