"""Settings that save memory, in the order in which a run that does not fit should try them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marl_ray.cluster.capacity_plan import ModelInfos, plan_capacity
from marl_ray.cluster.hardware import NodeSpec, total_gpus
from marl_ray.config import AgentConfig, Config, GeneratorResources
from marl_ray.learning.arguments import microbatch_tokens

SMALLER_OPTIMIZERS = {"adamw": ("adamw_8bit", "adafactor"), "adamw_8bit": ("adafactor",)}
"""Optimizers with a smaller state, by optimizer."""
MIN_SAVING = 0.01
"""Least share of the missing memory that a suggested setting saves."""
SAVINGS_OF_ACTORS: tuple[tuple[bool | None, str, str, int | bool, Callable[[AgentConfig], bool]], ...] = (
    (True, "learner", "offload_reference", True, lambda agent: _has_reference_on_gpu(agent)),
    (False, "generator", "kv_cache_mb", 128, lambda agent: agent.generator.kv_cache_mb > 128),
    (None, "generator", "max_num_seqs", 64, lambda agent: (agent.generator.max_num_seqs or 256) > 64),
    (True, "generator", "tensor_parallel", 2, lambda agent: _has_a_whole_gpu(agent.generator)),
)
"""Settings below `resources`: with GPUs, without, or both (None); section, key and value; whether it helps an agent."""


@dataclass(frozen=True, slots=True)
class Saving:
    """A setting, its value, and a function that applies it to a config."""

    setting: str
    value: str
    apply: Callable[[Config], Config]


def memory_savings(config: Config, gpus: int) -> list[Saving]:
    """Return settings that save memory on a cluster with this number of GPUs: first settings that cost time or GPUs,
    then settings that change training."""
    savings: list[Saving] = []
    learners = [agent.learner for agent in config.agents]
    has_gpus = gpus > 0
    for tokens in (2048, 512):
        if tokens < microbatch_tokens(config.training, has_gpus):
            savings.append(_of_optimizer(config.algorithm, "microbatch_tokens", tokens))
    if not config.training.gradient_checkpointing:
        savings.append(_of_optimizer(config.algorithm, "gradient_checkpointing", True))
    for on_gpus, section, key, value, helps in SAVINGS_OF_ACTORS:
        if on_gpus in (None, has_gpus) and any(map(helps, config.agents)):
            savings.append(_of_actors(section, key, value))
    if has_gpus and config.resources.residency is None:
        most_ranks = max(learner.ranks for learner in learners)
        ranks = 2  # powers of two, so that few plans are made
        while ranks <= gpus:
            if ranks > most_ranks:
                savings.append(_of_actors("learner", "ranks", ranks))
            ranks *= 2
        is_offloaded = all(learner.cpu_offload for learner in learners)
        if not is_offloaded and config.training.optimizer == "adamw":
            savings.append(Saving("resources.learner.cpu_offload", "true", _offload))
    # From here on the settings change training.
    for name in SMALLER_OPTIMIZERS.get(config.training.optimizer, ()):
        savings.append(Saving(f"{config.algorithm}.optimizer", name, _switch_optimizer(name)))
    if not config.lora.rank and not any(learner.offload_reference for learner in learners):
        savings.append(Saving("lora.rank", "16", _use_lora))
    return savings


def suggest_settings(config: Config, models: ModelInfos, nodes: Sequence[NodeSpec]) -> tuple[list[str], bool]:
    """Return settings that make the run fit, applied one after another, and whether it fits with all of them."""
    taken: dict[str, str] = {}
    missing = plan_capacity(config, models, nodes).missing_bytes
    for saving in memory_savings(config, total_gpus(nodes)):
        changed = saving.apply(config)
        plan = plan_capacity(changed, models, nodes)
        if plan.placed is None or plan.missing_bytes > (1 - MIN_SAVING) * missing:
            continue
        config = changed
        missing = plan.missing_bytes
        taken[saving.setting] = saving.value  # a later value of a setting replaces an earlier one
        if not plan.shortages:
            break
    return [f"{setting}: {value}" for setting, value in taken.items()], not missing


def _has_reference_on_gpu(agent: AgentConfig) -> bool:
    return bool(agent.reference_kl_coef) and not agent.learner.offload_reference


def _has_a_whole_gpu(generator: GeneratorResources) -> bool:
    return generator.tensor_parallel == 1 and generator.gpus is None


def _of_optimizer(section: str, key: str, value: int | bool) -> Saving:
    return Saving(f"{section}.{key}", str(value).lower(), lambda config: _with_optimizer(config, key, value))


def _with_optimizer(config: Config, key: str, value: object) -> Config:
    changes: dict[str, Any] = {key: value}
    return replace(config, training=replace(config.training, **changes))


def _of_actors(section: str, key: str, value: int | bool) -> Saving:
    """Return the saving by `resources.<section>.<key>` for every agent."""

    def apply(config: Config) -> Config:
        agents = []
        for agent in config.agents:
            changed = {section: replace(getattr(agent.resources, section), **{key: value})}
            agents.append(replace(agent, resources=replace(agent.resources, **changed)))
        return replace(config, agents=tuple(agents))

    return Saving(f"resources.{section}.{key}", str(value).lower(), apply)


def _switch_optimizer(name: str) -> Callable[[Config], Config]:
    def apply(config: Config) -> Config:
        # 8-bit AdamW does not support several ranks, which an earlier saving may have set.
        if name == "adamw_8bit" and any(agent.learner.ranks > 1 for agent in config.agents):
            return config
        return _with_optimizer(config, "optimizer", name)

    return apply


def _offload(config: Config) -> Config:
    """Offload the learners of several ranks to host memory; learners of one rank cannot be."""
    agents = []
    for agent in config.agents:
        learner = replace(agent.learner, cpu_offload=agent.learner.ranks > 1)
        agents.append(replace(agent, resources=replace(agent.resources, learner=learner)))
    return replace(config, agents=tuple(agents))


def _use_lora(config: Config) -> Config:
    return replace(config, lora=replace(config.lora, rank=16))
