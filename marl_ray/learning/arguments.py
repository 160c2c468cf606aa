"""Arguments of a learner, without torch, so that the driver can build them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from marl_ray.config import AgentConfig, Config, CreditConfig, LoraConfig, ModelConfig, OptimizerConfig
from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.core.random_streams import stream_seed
from marl_ray.models.names import resolve_model

FLOAT_BYTES = 4
"""Bytes per parameter of a learner."""
GPU_MICROBATCH_TOKENS = 8192
"""Default tokens of a micro-batch on a GPU, enough to occupy all of its units."""
STREAM_CHUNK_BYTES = 512 * 2**20
"""Size of the chunks of optimizer state that pass through a GPU in an optimizer step. The state of one parameter is not
divided."""
MAX_UNREDUCED_BYTES = 4 * 2**30
"""Largest float32 gradient that each rank on a GPU accumulates in full and reduces once per mini-batch. A larger one
would not fit beside the model; it is reduced in every micro-batch, which overlaps with the backward pass."""


class LearnerArguments(NamedTuple):
    """The arguments of `Learner`, in its order."""

    model_path: str
    agent: AgentConfig
    model: ModelConfig
    credit: CreditConfig
    optimizer: OptimizerConfig
    wire_dtype: str
    total_steps: int
    threads: int
    lora: LoraConfig = LoraConfig()
    seed: int = 0
    on_gpu: bool = False
    references: Mapping[int, str] | None = None
    max_new_tokens: Mapping[int, int] | None = None
    plugins: Sequence[str] = ()


def learner_arguments(
    config: Config, policy: PolicyId, total_steps: int, on_gpu: bool | None = None
) -> LearnerArguments:
    """Return the learner arguments of `policy`, whose learner and generators have GPUs or not. None: if this machine
    has one."""
    if on_gpu is None:
        import torch  # imported late: the driver starts without torch

        on_gpu = torch.cuda.is_available()
    settings = config.agents[policy.first_agent]
    references = None
    if settings.reference_kl_coef:
        references = {}
        for number in policy.agents:
            references[number] = resolve_model(config.agents[number].reference_model or settings.name)
    tokens = microbatch_tokens(config.training, on_gpu)
    return LearnerArguments(
        resolve_model(settings.name),
        settings,
        config.model,
        config.training,
        replace(config.training, importance=config.importance, microbatch_tokens=tokens),
        wire_dtype(settings, on_gpu),
        total_steps,
        max(1, round(settings.learner.cpus)),
        config.lora,
        stream_seed(config.seed, "adapter", policy.first_agent),
        on_gpu,
        references,
        {number: config.agents[number].max_new_tokens for number in policy.agents},
        config.plugins,
    )


def microbatch_tokens(optimizer: OptimizerConfig, on_gpu: bool) -> int:
    """Return the maximum number of tokens per micro-batch, by default more on a GPU."""
    if on_gpu and optimizer.microbatch_tokens is None:
        return GPU_MICROBATCH_TOKENS
    return optimizer.tokens_per_microbatch


def narrows_frozen_matrices(lora: LoraConfig, ranks: int, on_gpu: bool, item: int) -> bool:
    """Return whether a learner keeps the matrices that LoRA freezes in the engines' dtype, of `item` bytes.

    On GPUs it does, with one rank (FSDP shards parameters of one dtype together) and one adapter.
    """
    has_one_adapter = bool(lora.rank) and not lora.share_base
    return has_one_adapter and ranks == 1 and on_gpu and item < FLOAT_BYTES


def require_optimizer(optimizer: OptimizerConfig) -> None:
    """Raise UserError if the optimizer's library is not installed."""
    if optimizer.optimizer == "adamw_8bit" and importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(
            "optimizer adamw_8bit needs bitsandbytes, which is not installed: pip install "
            "'marl-ray[adamw-8bit]', or set optimizer to adamw"
        )


def wire_dtype(agent: AgentConfig, generators_have_gpus: bool) -> str:
    """Return the dtype of a policy's weights in its engines and in weight updates."""
    if agent.dtype != "auto":
        return agent.dtype
    return "bfloat16" if generators_have_gpus else "float32"
