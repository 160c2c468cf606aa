"""The fit of a run to the nodes of its cluster, before its actors start."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from marl_ray.config import Config
from marl_ray.core.chat import as_text
from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.models.names import resolve_model
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.models.weight_files import has_model_files
from marl_ray.trainer.context import RunInputs

if TYPE_CHECKING:
    from marl_ray.cluster.hardware import NodeSpec
    from marl_ray.cluster.memory_estimate import ModelInfo

logger = logging.getLogger(__name__)

PROMPT_SAMPLES = 32
"""Number of tasks for the typical length of a prompt."""


@dataclass(frozen=True, slots=True)
class FittedRun:
    """A run on the nodes of its cluster.

    config: the config with a decided `resources.colocate`, which is stored with the run.
    on_nodes: the config with the shares of GPUs on these nodes.
    reason: one line on the decision; empty without one.
    kv_cache_bytes: size of the KV cache of engines that share their GPUs, by policy.
    nodes: the nodes of the cluster.
    """

    config: Config
    on_nodes: Config
    reason: str
    kv_cache_bytes: Mapping[PolicyId, int]
    nodes: Sequence[NodeSpec]


def fit_to_nodes(config: Config, inputs: RunInputs, nodes: Sequence[NodeSpec]) -> FittedRun:
    """Decide `resources.colocate` and the KV caches of engines that share GPUs. Raises PlacementError."""
    from marl_ray.cluster.capacity_plan import engine_cache_bytes
    from marl_ray.cluster.placement_plan import make_plan
    from marl_ray.cluster.residency import decide_residency, is_decided, share_gpus

    has_gpus = any(node.gpus for node in nodes)
    if is_decided(config.agents, config.lora, config.resources, nodes):
        on_nodes = replace(config, agents=share_gpus(config.agents, config.lora, config.resources, nodes))
        plan = make_plan(on_nodes.agents, on_nodes.lora, on_nodes.resources, has_gpus)
        if not any(agent.shares_gpu for agent in plan.agents):
            return FittedRun(config, on_nodes, "", {}, nodes)  # nothing depends on the sizes of models
    models = model_infos(config, inputs)
    decided, reason = decide_residency(config, models, nodes)
    on_nodes = replace(decided, agents=share_gpus(decided.agents, decided.lora, decided.resources, nodes))
    kv_cache_bytes = {}
    if has_gpus:
        kv_cache_bytes = engine_cache_bytes(on_nodes, models, nodes)
    return FittedRun(decided, on_nodes, reason, kv_cache_bytes, nodes)


def model_infos(config: Config, inputs: RunInputs) -> dict[str, ModelInfo]:
    """Return the models by name, with their median prompt length if tasks and tokenizer are on this machine.

    A model whose config cannot be read is reported and omitted.
    """
    from marl_ray.cluster.memory_estimate import ModelInfo, read_model_config

    trust = config.model.model_kwargs.trust_remote_code
    models = {}
    for name in _model_names(config):
        try:
            model_config = read_model_config(name, trust, fetch=True)
        except UserError as error:
            logger.warning(str(error))
            continue
        models[name] = ModelInfo(model_config, trust)
        folder = resolve_model(name, fetch=False)
        if inputs.train_tasks and has_model_files(Path(folder)):
            texts: list[str] = []
            for task in inputs.train_tasks[:PROMPT_SAMPLES]:
                texts += map(as_text, inputs.environment.first_prompts(task))
            lengths = map(len, load_tokenizer(folder, config.model)(texts).input_ids)
            models[name] = ModelInfo(model_config, trust, round(median(lengths)))
    return models


def _model_names(config: Config) -> list[str]:
    """Return the names of all models of a run, reference models included, each once."""
    names: dict[str, None] = {}
    for agent in config.agents:
        names[agent.name] = None
        if agent.reference_model is not None:
            names[agent.reference_model] = None
    return list(names)
