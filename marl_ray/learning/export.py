"""A trained policy as engines and transformers load it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from marl_ray.config import ModelConfig, ModelKwargs
from marl_ray.core.files import fsync, fsync_tree
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
    """Write the policy, its numbers in `dtype` (None: those that peft says are an adapter's, as they are), the
    tokenizer, and the number of `steps` that it has learned for: whole, or not there.

    Raises RuntimeError if the saved tokenizer, loaded again, gives other ids of `texts` than the one trained with.
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
    """Its tensors, numbers in that type."""
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in policy.state_dict().items()
    }
