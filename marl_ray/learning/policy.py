"""A causal language model as a policy: loading it, and log-probabilities of sampled tokens."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from marl_ray.learning.attention import PACKED
from marl_ray.learning.batching import MicroBatch, Row, Sample, pack


def load_policy(name: str, trust_remote_code: bool, device: torch.device) -> Any:
    """The model with float32 master weights and no dropout, so that it agrees with the sampler."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        name, dtype=torch.float32, trust_remote_code=trust_remote_code, attn_implementation=PACKED
    )
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
    """log pi(token_k | prompt, tokens before k) at the sampling temperature, [N]."""
    logits = model(
        input_ids=batch.input_ids.unsqueeze(0),
        position_ids=batch.position_ids.unsqueeze(0),
        groups=batch.groups,
        logits_to_keep=batch.predictors,
        use_cache=False,
    ).logits[0]
    return -torch.nn.functional.cross_entropy(logits.float() / temperature, batch.tokens, reduction="none")


def check_packing(model: Any, device: torch.device) -> None:
    """Raises ValueError if a token's logits depend on another completion of its group.

    So it would be with layers that mix tokens elsewhere than in attention, or with an attention of their own.
    """
    samples = [Sample(ids, (), 0.0) for ids in ((3, 2, 1, 0), (2, 3, 1))]
    alone, both = (pack([Row((0, 1), tuple(group))]).to(device) for group in (samples[1:], samples))
    with torch.no_grad():
        expected, got = (token_logprobs(model, batch, 1.0)[-3:] for batch in (alone, both))
    if not torch.allclose(expected, got, rtol=1e-4, atol=1e-4):
        raise ValueError(
            f"{type(model).__name__} lets a completion see another one of its group: its layers mix tokens outside "
            "of the attention that transformers lets one choose, which cannot be trained here"
        )
