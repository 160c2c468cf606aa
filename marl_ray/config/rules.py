"""Combinations of settings that cannot work, as a table.

A rule says when it is broken, and then which setting to change. Texts are format strings: `{config.seed}` is a setting,
`{run.num_turns}` one of the section `magrpo` or `grpo`, whose name is `{section}`; in the rules of an agent `{agent}`
has its settings, and `{key[stop]}` is the key that sets one of them. Requirements of losses, estimators and critics are
in `marl_ray.credit.requirement_table`; problems that take more than a condition in `validation.py` and
`learning_rules.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from marl_ray.config.agent_section import AgentConfig
from marl_ray.config.algorithm_section import RolloutConfig
from marl_ray.config.keys import key_of
from marl_ray.config.lora_section import MAX_SERVED_RANK, LoraConfig
from marl_ray.config.resource_sections import takes_turns
from marl_ray.config.schema import Config


@dataclass(frozen=True, slots=True)
class RunRule:
    """A rule on the settings of a run."""

    is_broken: Callable[[Config], bool]
    text: str


@dataclass(frozen=True, slots=True)
class AgentRule:
    """A rule on the settings of an agent, as its own or from the run."""

    is_broken: Callable[[Config, AgentConfig], bool]
    text: str


class _Keys:
    """The keys that set the fields of an agent: `keys["learner.ranks"]`."""

    def __init__(self, config: Config, number: int) -> None:
        self.config = config
        self.number = number

    def __getitem__(self, field: str) -> str:
        return key_of(self.config, self.number, field)


def broken_rules(config: Config) -> Iterator[str]:
    """Yield the text of each rule that a config breaks, rules of the run first."""
    names: dict[str, Any] = {"config": config, "section": config.algorithm, "run": config.training}
    names |= {"weights": list(config.training.turn_gradient_weights), "sizes": list(config.training.group_sizes)}
    for rule in RULES:
        if rule.is_broken(config):
            yield rule.text.format(**names)
    for number, agent in enumerate(config.agents):
        for agent_rule in AGENT_RULES:
            if agent_rule.is_broken(config, agent):
                yield agent_rule.text.format(**names, agent=agent, key=_Keys(config, number))


def ends_branches(rollout: RolloutConfig) -> bool:
    """Return whether some branches of a tree may have fewer turns than others."""
    return rollout.handoff == "all" and rollout.early_termination_threshold is not None and rollout.num_turns > 1


RULES = (
    # Models, data and output.
    RunRule(
        lambda c: not all(agent.name for agent in c.agents),
        "no model: set model.name, or agents with one name per agent, or --model_name",
    ),
    RunRule(lambda c: not c.dataset.name, "no dataset: set dataset.name"),
    RunRule(
        lambda c: c.external.composition == "chat" and c.external.original_prompt,
        "external.original_prompt repeats the first prompt, which with external.composition chat is in the "
        "conversation anyway: leave it out",
    ),
    RunRule(
        lambda c: c.reward_processor.scale_factor == 0 and c.reward_processor.enabled,
        "reward_processor.scale_factor is 0, which makes all rewards equal: nothing would be learned",
    ),
    RunRule(
        lambda c: c.output.measure_cooperation != "free" and c.num_agents == 1,
        "output.measure_cooperation {config.output.measure_cooperation} recombines the answers of several agents, and "
        "there is one: leave it out",
    ),
    RunRule(
        lambda c: c.output.resume == "auto" and c.output.run_name is None,
        "output.resume auto resumes the run of one name: set output.run_name",
    ),
    # Turns.
    RunRule(
        lambda c: min(c.training.turn_gradient_weights) < 0 or max(c.training.turn_gradient_weights) == 0,
        "{section}.turn_gradient_weights {weights}: no weight should be negative, and not all 0, or nothing is learned",
    ),
    RunRule(
        lambda c: len(set(c.training.group_sizes)) > 1 and c.training.early_termination_threshold is not None,
        "{section}.early_termination_threshold ends nodes by their mean reward, and with num_generations "
        "{sizes} nodes of different turns do not compare: set it to null, or use external.stop",
    ),
    RunRule(
        lambda c: c.external.stop != "never" and c.training.num_turns == 1,
        "external.stop {config.external.stop} ends an episode before its last turn, and {section}.num_turns is 1: set "
        "it to never",
    ),
    RunRule(
        lambda c: c.external.stop != "never" and c.training.critic != "none",
        "external.stop {config.external.stop} leaves no next prompts, whose value {section}.critic {run.critic} needs: "
        "set external.stop to never, or {section}.critic to none",
    ),
    RunRule(
        # At the root all branches end or none does; below it they end one by one.
        lambda c: ends_branches(c.training) and c.training.num_turns > 2 and c.compat == "none",
        "{section}.early_termination_threshold with handoff all and {run.num_turns} turns would rank a branch that "
        "ended early below its siblings, because its return has fewer turns: set it to null, or num_turns to 2",
    ),
    # The length of a run, and its evaluations.
    RunRule(
        lambda c: c.training.num_train_epochs is None and c.training.max_steps is None,
        "{section}.num_train_epochs and {section}.max_steps are null, so the run has no end: set one of them",
    ),
    RunRule(
        lambda c: c.training.eval_temperature == 0 and c.training.eval_num_generations > 1,
        "{section}.eval_temperature is 0, so all {run.eval_num_generations} samples of {section}.eval_num_generations "
        "would be equal: set it to 1",
    ),
    # Learning.
    RunRule(
        lambda c: all(agent.learning_rate == 0 for agent in c.agents),
        "{section}.learning_rate is 0 for every agent, so nothing would be learned: raise one of them",
    ),
    RunRule(
        lambda c: c.training.learn_in_turns > 0 and len(c.learning_policies) < 2,
        "{section}.learn_in_turns is {run.learn_in_turns}, and fewer than two policies learn: set it to 0",
    ),
    RunRule(
        lambda c: c.training.learn_in_turns > 0 and c.training.dynamic_sampling,
        "{section}.learn_in_turns is {run.learn_in_turns}, and with dynamic_sampling the step of an episode, and so "
        "its learner, is not known when it is judged: set {section}.dynamic_sampling to false",
    ),
    RunRule(
        lambda c: c.training.critic_body == "own" and c.training.critic != "iac",
        "{section}.critic_body own is for critic iac, not {run.critic}: leave it out",
    ),
    RunRule(
        lambda c: c.training.clip_separately and (c.training.critic, c.training.critic_body) != ("iac", "shared"),
        "{section}.clip_separately is for critic iac with critic_body shared: leave it out",
    ),
    RunRule(
        lambda c: c.training.clip_separately and c.training.max_grad_norm is None,
        "{section}.clip_separately clips to {section}.max_grad_norm, which is null: set it, or leave it out",
    ),
    RunRule(
        lambda c: c.training.reference_kl != "k1_in_reward" and not any(a.reference_kl_coef for a in c.agents),
        "{section}.reference_kl is {run.reference_kl}, but there is no reference policy: set "
        "{section}.reference_kl_coef above 0, or leave it out",
    ),
    RunRule(
        lambda c: c.training.max_extra_draws is not None and not c.training.dynamic_sampling,
        "{section}.max_extra_draws is for dynamic_sampling: set {section}.dynamic_sampling to true, or leave it out",
    ),
    RunRule(
        lambda c: c.training.overlong_buffer > 0 and c.training.overlong != "penalty",
        "{section}.overlong_buffer is for overlong penalty, not {run.overlong}: leave it out",
    ),
    RunRule(
        lambda c: (
            c.training.optimizer == "adafactor" and (c.training.adam_beta1, c.training.adam_beta2) != (0.9, 0.999)
        ),
        "{section}.adam_beta1 and adam_beta2 are for AdamW, and {section}.optimizer is adafactor: leave them out",
    ),
    # Adapters.
    RunRule(
        lambda c: not c.lora.rank and c.lora != LoraConfig(),
        "lora.rank is 0, which disables adapters and all other settings of lora: set it, or leave them out",
    ),
    RunRule(
        lambda c: (
            c.lora.rank > 0
            and any(agent.learner.offload_reference and agent.reference_model is None for agent in c.agents)
        ),
        "resources.learner.offload_reference: with lora the reference policy is the base model, which is in memory "
        "anyway: leave it out",
    ),
    RunRule(
        lambda c: c.lora.serves_adapters and c.lora.rank > MAX_SERVED_RANK,
        f"lora.in_engine: vLLM serves adapters up to rank {MAX_SERVED_RANK}, and lora.rank is {{config.lora.rank}}: "
        "lower it, or set in_engine to false",
    ),
    RunRule(
        lambda c: c.lora.share_engine and c.lora.in_engine is False,
        "lora.share_engine is for engines that have an adapter per policy, and lora.in_engine is false",
    ),
    RunRule(
        lambda c: c.lora.share_engine and len(c.generator_groups) == len(c.policies),
        "lora.share_engine is for policies with the same base model and the same resources.generator, and no two "
        "policies of this run have both: leave it out, or name one model for them",
    ),
    RunRule(
        lambda c: c.lora.share_engine and takes_turns(c.resources.residency),
        "lora.share_engine: with resources.colocate {config.resources.residency} an engine sleeps while its learner "
        "uses the device, and other policies would wait: set colocate to auto or resident",
    ),
    RunRule(
        lambda c: c.lora.share_engine and c.training.inflight == "drain",
        "lora.share_engine: {section}.inflight drain would stop the requests of all policies for the update of one: "
        "set it to continue",
    ),
    RunRule(
        lambda c: c.lora.share_base and len(c.learner_groups) == len(c.policies),
        "lora.share_base is for policies with the same base model and the same resources.learner, and no two policies "
        "of this run have both: leave it out, or name one model for them",
    ),
    # One GPU for an engine and its learner.
    RunRule(
        lambda c: takes_turns(c.resources.residency) and c.lora.share_base,
        "resources.colocate {config.resources.residency}: a learner alternates with its own engine, and with "
        "lora.share_base several learners are one process: set colocate to auto or resident, or share_base to false",
    ),
    RunRule(
        lambda c: takes_turns(c.resources.residency) and c.training.max_staleness > 0,
        "resources.colocate: engines sleep during updates, so no rollouts can run ahead, and {section}.max_staleness "
        "is {run.max_staleness}: set it to 0, or colocate to false or resident",
    ),
)
"""Rules of a run."""


AGENT_RULES = (
    AgentRule(
        lambda c, a: a.reference_model is not None and not a.reference_kl_coef,
        "{key[reference_model]} is {agent.reference_model}, and {key[reference_kl_coef]} is 0: set it above 0, or "
        "leave reference_model out",
    ),
    # Lengths, in tokens.
    AgentRule(
        lambda c, a: c.training.overlong_buffer > a.max_new_tokens,
        "{section}.overlong_buffer is {run.overlong_buffer}, more than {key[max_new_tokens]} {agent.max_new_tokens}: "
        "lower it",
    ),
    AgentRule(
        lambda c, a: a.min_new_tokens > a.max_new_tokens,
        "{key[min_new_tokens]} is {agent.min_new_tokens}, more than {key[max_new_tokens]} {agent.max_new_tokens}: "
        "lower it",
    ),
    AgentRule(
        lambda c, a: bool(a.json_schema) and a.min_new_tokens > 0,
        "{key[json_schema]}: a JSON value may be complete before {key[min_new_tokens]} {agent.min_new_tokens}: set "
        "min_new_tokens to 0",
    ),
    AgentRule(
        lambda c, a: "" in a.stop,
        "{key[stop]} has an empty text, which would end every completion: leave it out",
    ),
    AgentRule(
        lambda c, a: c.model.max_length <= a.max_new_tokens,
        "model.max_length is {config.model.max_length}, no room for a prompt beside {key[max_new_tokens]} "
        "{agent.max_new_tokens}: raise the one or lower the other",
    ),
    # Devices.
    AgentRule(
        lambda c, a: a.learner.ranks > 1 and c.training.optimizer != "adamw",
        "{section}.optimizer {run.optimizer} needs unsharded weights, and {key[learner.ranks]} is "
        "{agent.learner.ranks}: set it to 1, or the optimizer to adamw",
    ),
    AgentRule(
        lambda c, a: a.learner.ranks > 1 and c.lora.share_base,
        "lora.share_base is for learners in one process, and {key[learner.ranks]} is {agent.learner.ranks}: leave one "
        "of them out",
    ),
    AgentRule(
        lambda c, a: a.learner.gpus is not None and a.learner.gpus > 1,
        "{key[learner.gpus]} is {agent.learner.gpus}, and a rank of a learner uses one GPU at most: set it to 1, and "
        "{key[learner.ranks]} to the number of GPUs",
    ),
    AgentRule(
        lambda c, a: a.learner.ranks > 1 and a.learner.gpus not in (None, 0, 1),
        "{key[learner.gpus]} is {agent.learner.gpus} for each of {agent.learner.ranks} ranks, and ranks do not share a "
        "GPU: set it to 1, or {key[learner.ranks]} to 1",
    ),
    AgentRule(
        lambda c, a: a.learner.ranks == 1 and a.learner.cpu_offload,
        "{key[learner.cpu_offload]} is for weights that ranks shard, and {key[learner.ranks]} is 1: set it to 2 or "
        "more, or leave cpu_offload out",
    ),
    AgentRule(
        lambda c, a: _has_wrong_gpus(a),
        "{key[generator.gpus]} is {agent.generator.gpus} but {key[generator.tensor_parallel]} is "
        "{agent.generator.tensor_parallel}: make them equal",
    ),
    AgentRule(
        lambda c, a: a.generator.gpus == 0 and a.generator.tensor_parallel > 1,
        "{key[generator.tensor_parallel]} above 1 needs GPUs: set {key[generator.gpus]} to the same number",
    ),
    AgentRule(
        lambda c, a: c.resources.residency is not None and a.learner.gpus is not None,
        "resources.colocate: a learner uses its engine's device, so {key[learner.gpus]} has no effect: leave it out",
    ),
)
"""Rules of each agent."""


def _has_wrong_gpus(agent: AgentConfig) -> bool:
    """Return whether an engine has neither one GPU per tensor-parallel rank nor, alone, a fraction of one."""
    gpus = agent.generator.gpus
    ranks = agent.generator.tensor_parallel
    if gpus is None or gpus == 0 or gpus == ranks:
        return False
    return gpus >= 1 or ranks > 1
