"""A causal language model as a policy: loading it, and log-probabilities of sampled tokens."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from marl_ray.learning.batching import MicroBatch


def load_policy(name: str, trust_remote_code: bool, device: torch.device) -> Any:
    """The model with float32 master weights and no dropout, so that it agrees with the sampler."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, trust_remote_code=trust_remote_code)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for key, value in vars(model.config).items():
        if key.endswith(("dropout", "pdrop", "dropout_prob")) and isinstance(value, float):
            setattr(model.config, key, 0.0)
    return model.to(device).train()


def compute_in(dtype: torch.dtype, device: torch.device) -> AbstractContextManager:
    """Autocast to `dtype` on a GPU; on a CPU compute in float32."""
    if device.type == "cuda" and dtype != torch.float32:
        return torch.autocast("cuda", dtype=dtype)
    return nullcontext()


def token_logprobs(model: Any, batch: MicroBatch, temperature: float) -> torch.Tensor:
    """log pi(token_k | prompt, tokens before k) at the sampling temperature, [B, C], 0 at padding."""
    width = batch.tokens.shape[1]
    logits = model(
        input_ids=batch.input_ids,
        attention_mask=attention_mask(model, batch.attention),
        position_ids=batch.position_ids,
        logits_to_keep=width + 1,
        use_cache=False,
    ).logits
    logits = logits.float() / temperature
    rows = torch.arange(len(logits), device=logits.device).unsqueeze(1)
    chosen = logits[rows, batch.predictors, batch.tokens]
    normalizer = logits.logsumexp(-1).gather(1, batch.predictors)
    return (chosen - normalizer) * batch.mask


def attention_mask(model: Any, attention: torch.Tensor) -> torch.Tensor:
    """What transformers passes on unchanged to the attention: bool for SDPA, an addend for eager attention."""
    if model.config._attn_implementation == "sdpa":
        return attention
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else model.dtype
    return torch.zeros(attention.shape, dtype=dtype, device=attention.device).masked_fill(
        ~attention, torch.finfo(dtype).min
    )
