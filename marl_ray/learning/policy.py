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


def token_logprobs(model: Any, batch: MicroBatch, temperature: float, longest: int = 0) -> torch.Tensor:
    """log pi(token_k | prompt, tokens before k) at the sampling temperature, [N].

    `longest`: see `marl_ray.learning.attention.packed_attention`.
    """
    logits = model(
        input_ids=batch.input_ids.unsqueeze(0),
        position_ids=batch.position_ids.unsqueeze(0),
        groups=batch.groups,
        longest=longest,
        logits_to_keep=batch.predictors,
        use_cache=False,
    ).logits[0]
    return -torch.nn.functional.cross_entropy(logits.float() / temperature, batch.tokens, reduction="none")


def check_packing(model: Any, device: torch.device, max_length: int) -> None:
    """Raises ValueError if packed log-probabilities are not those that the model gives for a sequence alone.

    So it is with layers that mix tokens elsewhere than in attention, with attention that cannot be chosen, and with
    what changes for sequences of up to `max_length` tokens: windows, chunks, rotary embeddings.
    """
    name = type(model).__name__
    first, second = (3, 2, 1, 0), (2, 3, 1)
    batch = pack([Row((0, 1), tuple(Sample(ids, (), 0.0) for ids in (first, second)))]).to(device)
    alone = torch.tensor([[0, 1, *second]], device=device)
    try:
        _check_lengths(model.config, max_length)
        with torch.no_grad():
            packed = token_logprobs(model, batch, 1.0, longest=max_length)[-len(second) :]
            model.set_attn_implementation("eager")
            scores = model(input_ids=alone, use_cache=False).logits[0, 1:-1].float().log_softmax(-1)
            model.set_attn_implementation(PACKED)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be trained here: {error}") from error
    if not torch.allclose(scores.gather(1, alone[0, 2:].unsqueeze(1)).squeeze(1), packed, rtol=1e-4, atol=1e-4):
        raise ValueError(
            f"{name} cannot be trained here: packed in a group, its log-probabilities change, so its layers mix tokens "
            "outside of the attention that transformers lets one choose"
        )


def _check_lengths(config: Any, max_length: int) -> None:
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk is not None and max_length > chunk:
        raise ValueError(f"it attends in chunks of {chunk}: lower model.max_length")
    rope = getattr(config, "rope_parameters", None) or {}
    for settings in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if settings.get("rope_type") not in ("dynamic", "longrope"):
            continue
        original = settings.get("original_max_position_embeddings") or config.max_position_embeddings
        if max_length > original:
            raise ValueError(f"its rotary embedding changes beyond {original} tokens: lower model.max_length")
