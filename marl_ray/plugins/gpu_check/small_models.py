"""Untrained models of shapes that the bundled models lack. They use the tokenizer of `bundled:toy-base`."""

from __future__ import annotations

import math
from typing import Any

from marl_ray.models.names import resolve_model

HEAD_DIM = 64


def write_two_head_model(folder: str) -> str:
    """Write a model whose heads divide by two, for tensor parallelism, and return its folder."""
    return _write(folder, hidden_size=4 * HEAD_DIM, num_attention_heads=4, num_key_value_heads=2)


def write_wide_model(folder: str, embedding_bytes: int) -> str:
    """Write a model with an embedding of at least `embedding_bytes` in 16 bits, and return its folder."""
    hidden = 8 * HEAD_DIM
    rows = math.ceil(embedding_bytes / (2 * hidden))
    return _write(folder, hidden_size=hidden, num_attention_heads=8, num_key_value_heads=8, vocab_size=rows)


def _write(folder: str, **sizes: int) -> str:
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(resolve_model("bundled:toy-base"))
    shape: dict[str, Any] = {"vocab_size": len(tokenizer), "intermediate_size": 512, "num_hidden_layers": 2} | sizes
    config = LlamaConfig(
        **shape,
        head_dim=HEAD_DIM,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
