"""An adapter in a folder, and the model that it is for, made one model for who loads no adapters."""

from __future__ import annotations

from pathlib import Path

import torch

from marl_ray.config import ModelConfig
from marl_ray.core.errors import UserError
from marl_ray.learning.policy_model import load_policy
from marl_ray.models.lora import NAME, load_adapter, merge_adapter
from marl_ray.models.tokenization import load_tokenizer


def save_merged_model(base: str, adapter: Path, into: Path, model: ModelConfig) -> None:
    """Write `base`, a local folder or hub id, with what the adapter adds, in float32, and its tokenizer.

    Raises UserError, which names the adapter, where it is not one of this model.
    """
    from peft import PeftConfig

    policy = load_policy(base, model.model_kwargs.trust_remote_code, torch.device("cpu"))
    try:
        policy.add_adapter(PeftConfig.from_pretrained(str(adapter)), adapter_name=NAME)
        load_adapter(policy, adapter)
    except (ValueError, TypeError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"adapter {adapter} cannot be merged into {base}: {reason}") from None
    merge_adapter(policy)
    policy.save_pretrained(into)
    load_tokenizer(base, model).save_pretrained(into)
