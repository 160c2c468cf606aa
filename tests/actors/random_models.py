"""Small models of other families than the bundled one."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from marl_ray.toy import BASE_PATH


def random_model(family: str, settings: dict, folder: Path) -> str:
    """Write a small model of `family` with random weights and the bundled tokenizer; return its folder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 1,
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(shape | settings)))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BASE_PATH / name, folder)
    return str(folder)
