"""Export of trained policies in the format of transformers, engines and peft."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from marl_ray.config import ModelConfig, ModelKwargs
from marl_ray.core.errors import UserError
from marl_ray.core.files import fsync, fsync_tree
from marl_ray.learning.policy_model import load_policy
from marl_ray.models.lora import NAME, load_adapter, merge_adapter
from marl_ray.models.tokenization import fingerprint, load_tokenizer
from marl_ray.models.weight_files import TRAINED_FILE


def write_model(
    folder: str,
    policy: Any,
    dtype: torch.dtype | None,
    tokenizer: Any,
    kwargs: ModelKwargs,
    texts: list[str],
    steps: int,
) -> None:
    """Write a trained policy, its tokenizer and its number of training steps, atomically.

    `dtype` is the dtype of the written weights; None writes only the adapter, unchanged. Raises RuntimeError if the
    saved tokenizer, loaded again, encodes `texts` differently.
    """
    final, hidden = Path(folder), Path(folder).with_name(f".{Path(folder).name}")
    policy.save_pretrained(hidden, state_dict=None if dtype is None else _cast(policy, dtype))
    tokenizer.save_pretrained(hidden)
    saved = load_tokenizer(str(hidden), ModelConfig(model_kwargs=kwargs))
    if fingerprint(saved, texts) != fingerprint(tokenizer, texts):
        raise RuntimeError(f"the tokenizer saved in {folder} splits text differently when it is loaded again")
    (hidden / TRAINED_FILE).write_text(json.dumps({"steps": steps}) + "\n")
    fsync_tree(hidden)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(hidden, final)
    fsync(final.parent)


def _cast(policy: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the policy's tensors, floating-point ones in `dtype`."""
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in policy.state_dict().items()
    }


def save_merged_model(base: str, adapter: Path, into: Path, model: ModelConfig) -> None:
    """Merge an adapter into `base` (a local folder or hub id), and write the float32 model with its tokenizer.

    Raises UserError, naming the adapter, if it does not fit the model.
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
