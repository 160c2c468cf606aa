"""What a run's models come to, from their configurations alone: no weights are read, none are made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_ray.cluster.memory_estimate import LearnerSize, ModelSize
from marl_ray.config import AgentConfig, Config
from marl_ray.core.errors import UserError
from marl_ray.learning.arguments import wire_dtype
from marl_ray.models.names import resolve_model

if TYPE_CHECKING:
    from marl_ray.config import LoraConfig
    from marl_ray.learning.memory_profile import MemoryProfile, MicroBatchShape

ASK_S = 5.0
"""Seconds that a hub has to answer."""
PROMPT = 128
"""Tokens of a prompt, where nobody knows: an assumption."""


def read_model_config(name: str, trust_remote_code: bool, fetch: bool) -> Any:
    """transformers' configuration of a model: of a folder, of the cache of a hub, or, with `fetch`, of the hub, which
    is asked for that one file. Raises UserError."""
    from transformers import AutoConfig

    place = resolve_model(name, fetch=False)
    known = Path(place).is_dir()
    try:
        if not known and fetch:
            from huggingface_hub import hf_hub_download

            hf_hub_download(place, "config.json", etag_timeout=ASK_S)
        return AutoConfig.from_pretrained(place, trust_remote_code=trust_remote_code, local_files_only=not known)
    except Exception as error:  # transformers and the hub raise many kinds; each means the same here
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"model {name}: its config.json cannot be read: {reason}") from None


class ProfilingFailed(UserError):
    """A model does not compute on tensors without data."""


@dataclass(frozen=True, eq=False)
class ModelInfo:
    """One model of a run. `settings` are what `read_model_config` found; `prompt` the tokens of a typical prompt."""

    settings: Any
    trust_remote_code: bool
    prompt: int = PROMPT

    def engine(self) -> ModelSize:
        """As an engine has it."""
        text = self.settings.get_text_config()
        heads = getattr(text, "num_attention_heads", 1)
        width = getattr(text, "head_dim", None) or text.hidden_size // heads
        kv_heads = getattr(text, "num_key_value_heads", None) or heads
        return ModelSize(
            parameters=_count(self),
            kv=2 * text.num_hidden_layers * kv_heads * width,
            hidden=text.hidden_size,
            intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
            vocabulary=text.vocab_size,
        )

    def learner(self, config: Config, agent: AgentConfig, on_gpu: bool) -> tuple[LearnerSize, float]:
        """As a learner has it, and the FLOPs of a token that is learned from. Raises ProfilingFailed."""
        found = self._rehearsed(config, agent, on_gpu)
        whole = found.parameters - (found.trained if config.lora.rank else 0)
        layer = (whole - found.embeddings) // max(1, found.layers)
        size = LearnerSize(
            parameters=whole,
            trained=found.trained,
            rows=found.rows,
            largest=found.largest,
            shared=found.embeddings + 2 * layer,
            activations=found.activations,
            logits=found.logits,
        )
        return size, found.flops / found.tokens

    def _rehearsed(self, config: Config, agent: AgentConfig, on_gpu: bool) -> MemoryProfile:
        from marl_ray.learning.memory_profile import MicroBatchShape

        new, generations = agent.max_new_tokens, config.rollout.num_generations
        group = self.prompt + generations * new
        tokens = config.optimizer.microbatch_tokens
        groups = min(tokens // group, config.rollout.rollout_buffer_size * config.rollout.num_turns)
        fit = generations if groups else max(1, (tokens - self.prompt) // new)
        shape = MicroBatchShape(max(1, groups), self.prompt, fit, new, accumulated=True)
        dtype = wire_dtype(agent, on_gpu)
        return _rehearse(self, shape, config.lora, config.optimizer.gradient_checkpointing, dtype, on_gpu)


@cache
def _rehearse(
    model: ModelInfo, shape: MicroBatchShape, lora: LoraConfig, gradient_checkpointing: bool, dtype: str, on_gpu: bool
) -> MemoryProfile:
    from marl_ray.learning.memory_profile import profile_memory

    try:
        return profile_memory(
            model.settings, shape, lora, gradient_checkpointing, dtype, on_gpu, model.trust_remote_code
        )
    except Exception as error:  # a model's own code may raise anything here
        raise ProfilingFailed(
            f"it does not compute on tensors without data: {' '.join(str(error).split())[:160]}"
        ) from None


@cache
def _count(model: ModelInfo) -> int:
    from marl_ray.learning.memory_profile import count_parameters

    return count_parameters(model.settings, model.trust_remote_code)
