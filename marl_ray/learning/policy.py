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
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        logits_to_keep=width + 1,
        use_cache=False,
    ).logits[:, :-1]
    logits = logits.float() / temperature
    chosen = logits.gather(-1, batch.tokens.unsqueeze(-1)).squeeze(-1)
    return (chosen - logits.logsumexp(-1)) * batch.mask
