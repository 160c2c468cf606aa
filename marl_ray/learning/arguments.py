"""Arguments of a learner, without torch, so that the driver can build them."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import NamedTuple

from marl_ray.config import AgentConfig, Config, CreditConfig, LoraConfig, ModelConfig, OptimizerConfig
from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.core.random_streams import stream_seed
from marl_ray.models.names import resolve_model


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


def learner_arguments(
    config: Config, policy: PolicyId, generators_have_gpus: bool, total_steps: int
) -> LearnerArguments:
    settings = config.agents[policy.number]
    return LearnerArguments(
        resolve_model(settings.name),
        settings,
        config.model,
        config.credit,
        replace(config.optimizer, importance=config.importance),
        wire_dtype(settings, generators_have_gpus),
        total_steps,
        max(1, round(settings.learner.cpus)),
        config.lora,
        stream_seed(config.seed, "adapter", policy.number),
    )


def local_learner_arguments(config: Config, policy: PolicyId, total_steps: int) -> LearnerArguments:
    """Return the learner arguments of `policy` when running on this machine."""
    import torch  # imported late: the driver starts without torch

    return learner_arguments(config, policy, torch.cuda.is_available(), total_steps)


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
