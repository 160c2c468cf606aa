"""A causal language model as a policy: loading it, and log-probabilities of sampled tokens."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from marl_ray.core.errors import UserError
from marl_ray.learning.attention import PACKED
from marl_ray.learning.logprobs import token_logprobs_and_entropies
from marl_ray.learning.micro_batches import (
    NO_TOKEN,
    Layout,
    MicroBatch,
    MicroBatcher,
    PromptRow,
    WeightedCompletion,
    pack,
    pad,
)
from marl_ray.learning.ranks import SINGLE_RANK, RankGroup


def load_policy(name: str, trust_remote_code: bool, device: torch.device) -> Any:
    """The model with float32 master weights and nothing random in it, so that it agrees with the sampler."""
    from transformers import AutoModelForCausalLM

    config = _without_noise(name, trust_remote_code)
    model: Any = AutoModelForCausalLM.from_pretrained(
        name, config=config, dtype=torch.float32, trust_remote_code=trust_remote_code
    )
    return model.to(device).train()


def blank_policy(name: str, trust_remote_code: bool) -> Any:
    """What `load_policy` makes, without memory for weights and buffers: all are on PyTorch's meta device."""
    from transformers import AutoModelForCausalLM

    config = _without_noise(name, trust_remote_code)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=trust_remote_code)
    return model.train()


def _without_noise(name: str, trust_remote_code: bool) -> Any:
    """The model's configuration, after `remove_noise`."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    remove_noise(config)
    return config


def remove_noise(config: Any) -> None:
    """No dropout and no jitter of routers, in place, the configurations inside included."""
    from transformers import PreTrainedConfig

    for key, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            remove_noise(value)
        elif isinstance(value, float) and ("drop" in key or "jitter" in key):
            setattr(config, key, 0.0)


def compute_in(dtype: torch.dtype, device: torch.device) -> AbstractContextManager:
    """Autocast to `dtype` on a GPU, and to bfloat16 on a CPU that has units for it; else compute in float32."""
    if dtype != torch.float32 and (device.type == "cuda" or _multiplies(dtype)):
        # No cache of cast weights: each is used once a pass, and all would be kept until the pass is over.
        return torch.autocast(device.type, dtype=dtype, cache_enabled=False)
    return nullcontext()


def _multiplies(dtype: torch.dtype) -> bool:
    """Whether this CPU has matrix units for `dtype`. Without them it would be slower than float32."""
    return dtype == torch.bfloat16 and torch.cpu.get_capabilities().get("amx_bf16", False)


@dataclass(frozen=True, slots=True)
class LogprobModel:
    """A model, and how it scores tokens: at the sampling `temperature`, in micro-batches of `layout`, computed in
    `dtype` where that is possible; by all `ranks` that share the model."""

    model: Any
    layout: Layout
    temperature: float
    dtype: torch.dtype
    ranks: RankGroup = SINGLE_RANK

    @property
    def device(self) -> torch.device:
        """Where it computes. Weights that are shared out may be kept elsewhere, and are brought there."""
        if self.ranks.is_single:
            return self.model.device
        return torch.device(next(self.model.parameters()).device_mesh.device_type)

    def logprobs(self, rows: Sequence[PromptRow], max_tokens: int, apart: bool = False) -> list[torch.Tensor]:
        """log pi of each token of the rows' completions, [K] each, on the CPU; no gradient. Micro-batches have at most
        `max_tokens` tokens, and are of one row each if rows are scored `apart`."""
        rows = [row for row in rows if row.completions]
        cutter = MicroBatcher(max_tokens, self.layout, self.ranks)
        numbers = {id(completion): number for number, completion in enumerate(c for r in rows for c in r.completions)}
        own: dict[int, torch.Tensor] = {}
        with torch.no_grad(), compute_in(self.dtype, self.device):
            for micro_batch in cutter.per_row(rows) if apart else (*cutter.add(rows), *cutter.flush()):
                batch = micro_batch.to(self.device)
                known = token_logprobs(self.model, batch, self.temperature)[batch.tokens != NO_TOKEN].cpu()
                lengths = [len(completion.token_ids) for completion in batch.completions]
                of_each = zip(batch.completions, known.split(lengths), strict=False)  # nothing is split into one part
                own |= {numbers[id(completion)]: logprobs for completion, logprobs in of_each}
        found = {number: logprobs for part in self.ranks.all_gather(own) for number, logprobs in part.items()}
        return [found[number] for number in range(len(numbers))]


def token_logprobs(model: Any, batch: MicroBatch, temperature: float) -> torch.Tensor:
    """log pi(token_k | prompt, tokens before k) at the sampling temperature, [B * C]; 0 where nothing is predicted."""
    return token_logprobs_and_entropies(token_logits(model, batch), batch.tokens, temperature)[0]


def token_logits(model: Any, batch: MicroBatch) -> torch.Tensor:
    """The model's logits, [B * C, V], in the type in which it computes."""
    arguments: dict[str, Any] = {"input_ids": batch.input_ids, "use_cache": False}
    if batch.groups:
        arguments |= {"position_ids": batch.position_ids, "groups": batch.groups}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        logits = model(**arguments, logits_to_keep=batch.columns).logits
    else:
        logits = model(**arguments).logits[:, batch.columns]
    return logits.flatten(0, 1)


def choose_layout(model: Any, device: torch.device, max_length: int) -> tuple[Layout, str]:
    """How micro-batches of this model are laid out, and why if they are not packed; sets the model's attention.

    Both layouts are proven on two short completions, against the model's own attention over each alone. Packing fails
    for layers that mix tokens elsewhere than in attention, for attention that cannot be chosen or does more than
    comparing keys, and for windows or chunks shorter than `max_length`. Raises UserError for a model that fails both,
    and for rotary embeddings that depend on the length of a batch.
    """
    config = model.config.get_text_config()
    _check_rotary(config, max_length)
    own = _own_attention(model)
    model.set_attn_implementation(own)
    completions = ((3, 2, 1, 0), (2, 3, 1))
    rows = [PromptRow((0, 1), (WeightedCompletion(ids, (0.0,) * len(ids), 0.0),)) for ids in completions]
    with torch.no_grad():
        alone = torch.cat([token_logprobs(model, pad([row]).to(device), 1.0) for row in rows])
    together = PromptRow((0, 1), tuple(completion for row in rows for completion in row.completions))
    try:
        _check_reach(config, max_length)
        model.set_attn_implementation(PACKED)
        with torch.no_grad():
            packed = token_logprobs(model, _as_long_as(pack([together]), max_length).to(device), 1.0)
        if _close(packed, alone):
            return "packed", ""
        reason = "its layers mix tokens outside of the attention that transformers lets one choose"
    except ValueError as error:
        reason = str(error)
    except (AttributeError, KeyError, RuntimeError, TypeError):
        reason = "its layers do not take what packed attention needs"
    model.set_attn_implementation(own)
    batch = pad(rows).to(device)
    with torch.no_grad():
        padded = token_logprobs(model, batch, 1.0)[batch.tokens != NO_TOKEN]
    if not _close(padded, alone):
        raise UserError(
            f"{type(model).__name__} cannot be trained here: the log-probabilities of a sequence change with what is "
            "computed beside or after it"
        )
    return "padded", reason


def _as_long_as(batch: MicroBatch, length: int) -> MicroBatch:
    """The batch as if it held a sequence of this length, for what attention refuses by length."""
    return replace(batch, groups=tuple(replace(group, longest=length) for group in batch.groups))


def _close(some: torch.Tensor, others: torch.Tensor) -> bool:
    return torch.allclose(some, others, rtol=1e-4, atol=1e-4)


def _own_attention(model: Any) -> str:
    """What transformers chose for it, but for softcapping, which its fused attention leaves out without a word."""
    softcap = getattr(model.config.get_text_config(), "attn_logit_softcapping", None)
    return "eager" if softcap is not None else model.config._attn_implementation


def _check_reach(config: Any, max_length: int) -> None:
    """Windows and chunks, also those that a model puts into masks and its attention never hears of."""
    for name in ("sliding_window", "attention_chunk_size"):
        reach = getattr(config, name, None)
        if reach is not None and max_length > reach:
            raise ValueError(f"its attention looks back {reach} tokens, less than model.max_length {max_length}")


def _check_rotary(config: Any, max_length: int) -> None:
    """Engines choose such embeddings once, not for each batch."""
    rope = getattr(config, "rope_parameters", None) or {}
    for settings in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if settings.get("rope_type") not in ("dynamic", "longrope"):
            continue
        original = settings.get("original_max_position_embeddings") or config.max_position_embeddings
        if max_length > original:
            raise UserError(
                f"{type(config).__name__.removesuffix('Config')} cannot be trained here: its rotary embedding changes "
                f"beyond {original} tokens: lower model.max_length"
            )
