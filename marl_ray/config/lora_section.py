"""Section `lora` of a config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from marl_ray.config.values import NonNegativeInt, PositiveInt, Section

MAX_SERVED_RANK = 512
"""Largest rank of an adapter that vLLM serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig(Section):
    """LoRA adapters, trained instead of all weights. Requires the extra `lora`."""

    rank: NonNegativeInt = 0
    """Rank of the adapters. 0: no adapters, all weights are trained."""
    alpha: PositiveInt | None = None
    """Adapter outputs are scaled by alpha / rank. null: 2 * rank."""
    targets: tuple[str, ...] = ()
    """Names of the adapted layers, such as [q_proj, v_proj]. []: all linear layers except the output layer."""
    export: Literal["merged", "adapter"] = "merged"
    """Format of models/ at the end of a run. merged: complete models for transformers and inference engines; adapter:
    adapters only, which peft loads on top of the base model."""
    share_base: bool = False
    """Train policies with the same base model and the same learner resources in one process, one after another, each
    with its own adapter. The base model is in memory once."""
    in_engine: bool | None = None
    """Engines load the base model once and receive adapters only. false: engines receive all weights, with the adapter
    merged. null: true with share_engine, otherwise false."""
    share_engine: bool = False
    """Policies with the same base model, data type and generator resources share generators, whose engines have the
    base model once and an adapter per policy."""

    @property
    def serves_adapters(self) -> bool:
        """Whether engines have the base model and receive adapters."""
        return self.rank > 0 and (self.share_engine or self.in_engine is True)
