"""A causal language model as a policy: loading, log-probabilities of sampled tokens, micro-batch layouts."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from marl_ray.core.errors import UserError
from marl_ray.learning.attention import PACKED, PackedGroups
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


def load_policy(name: str, trust_remote_code: bool, device: torch.device, ranks: RankGroup = SINGLE_RANK) -> Any:
    """Return the model with float32 master weights and without dropout, so that it agrees with the sampler.

    A model to be sharded over several ranks has its weights on rank 0's CPU, and on the meta device elsewhere.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    remove_noise(config)
    if ranks.rank:
        return empty_model(config, trust_remote_code)
    model: Any = AutoModelForCausalLM.from_pretrained(
        name, config=config, dtype=torch.float32, trust_remote_code=trust_remote_code
    )
    return model.to(device if ranks.is_single else "cpu").train()


def empty_model(config: Any, trust_remote_code: bool) -> Any:
    """Return the model of a transformers configuration on the meta device, without memory for its weights."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=trust_remote_code)
    return model.train()


def remove_noise(config: Any) -> None:
    """Set dropout and router jitter to 0, in place, in nested configurations too."""
    from transformers import PreTrainedConfig

    for key, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            remove_noise(value)
        elif isinstance(value, float) and ("drop" in key or "jitter" in key):
            setattr(config, key, 0.0)


def compute_in(dtype: torch.dtype, device: torch.device) -> AbstractContextManager:
    """Return autocast to `dtype` on a GPU, or to bfloat16 on a CPU with matrix units for it, without which it is slower
    than float32; otherwise a context that does nothing."""
    cpu_units = dtype == torch.bfloat16 and torch.cpu.get_capabilities().get("amx_bf16", False)
    if dtype != torch.float32 and (device.type == "cuda" or cpu_units):
        # No cache of cast weights: each is used once per pass, and a cache would keep them all until the end.
        return torch.autocast(device.type, dtype=dtype, cache_enabled=False)
    return nullcontext()


@dataclass(frozen=True, slots=True)
class LogprobModel:
    """A model that computes log-probabilities of tokens at the sampling temperature.

    Computation uses `dtype` where possible; `ranks` is the rank group that shards the model.
    """

    model: Any
    layout: Layout
    temperature: float
    dtype: torch.dtype
    ranks: RankGroup = SINGLE_RANK

    @property
    def device(self) -> torch.device:
        """Device of the computation; sharded weights may be kept elsewhere and moved there."""
        if self.ranks.is_single:
            return self.model.device
        return torch.device(next(self.model.parameters()).device_mesh.device_type)

    def logprobs(self, rows: Sequence[PromptRow], max_tokens: int, per_row: bool = False) -> list[torch.Tensor]:
        """Return log pi of each token of the rows' completions, [K] each, on the CPU, without a gradient.

        Micro-batches have at most `max_tokens` tokens, and with `per_row` a single row each.
        """
        rows = [row for row in rows if row.completions]
        batcher = MicroBatcher(max_tokens, self.layout, self.ranks)
        numbers = {id(completion): number for number, completion in enumerate(c for r in rows for c in r.completions)}
        of_completion: dict[int, torch.Tensor] = {}
        with torch.no_grad(), compute_in(self.dtype, self.device):
            for micro_batch in batcher.per_row(rows) if per_row else (*batcher.add(rows), *batcher.flush()):
                batch = micro_batch.to(self.device)
                known = token_logprobs(self.model, batch, self.temperature)[batch.tokens != NO_TOKEN].cpu()
                lengths = [len(completion.token_ids) for completion in batch.completions]
                pairs = zip(batch.completions, known.split(lengths), strict=False)  # splitting 0 rows gives one part
                of_completion |= {numbers[id(completion)]: logprobs for completion, logprobs in pairs}
        gathered = self.ranks.all_gather(of_completion)
        by_number = {number: logprobs for part in gathered for number, logprobs in part.items()}
        return [by_number[number] for number in range(len(numbers))]


def token_logprobs(model: Any, batch: MicroBatch, temperature: float) -> torch.Tensor:
    """Return log pi(token_k | prompt, tokens before k) at the temperature, [B * C]; 0 without a predicted token."""
    return token_logprobs_and_entropies(token_logits(model, batch), batch.tokens, temperature)[0]


def token_logits(model: Any, batch: MicroBatch) -> torch.Tensor:
    """Return the model's logits, [B * C, V], in its compute dtype."""
    arguments: dict[str, Any] = {"input_ids": batch.input_ids, "use_cache": False}
    if batch.groups is not None:
        arguments |= {"position_ids": batch.position_ids, "groups": batch.groups}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        logits = model(**arguments, logits_to_keep=batch.columns).logits
    else:
        logits = model(**arguments).logits[:, batch.columns]
    return logits.flatten(0, 1)


def choose_layout(model: Any, device: torch.device, max_length: int) -> tuple[Layout, str]:
    """Set the model's attention; return the layout of its micro-batches, and the reason if they are not packed.

    Both layouts are compared, on two short completions, with the model's own attention over each completion alone.
    Raises UserError if both layouts fail, and for rotary embeddings that depend on a batch's length.
    """
    config = model.config.get_text_config()
    _check_rotary(config, max_length)
    # transformers' fused attention ignores softcapping silently.
    softcap = getattr(config, "attn_logit_softcapping", None)
    own = model.config._attn_implementation if softcap is None else "eager"
    model.set_attn_implementation(own)
    completions = ((3, 2, 1, 0), (2, 3, 1))
    rows = [PromptRow((0, 1), (WeightedCompletion(ids, (0.0,) * len(ids), 0.0),)) for ids in completions]
    with torch.no_grad():
        alone = torch.cat([token_logprobs(model, pad([row]).to(device), 1.0) for row in rows])
    together = pack([PromptRow((0, 1), tuple(completion for row in rows for completion in row.completions))])
    # Attention compares the length of sequences with its window.
    assert together.groups is not None
    longest = replace(together, groups=PackedGroups(replace(g, longest=max_length) for g in together.groups.groups))
    try:
        _check_reach(config, max_length)
        model.set_attn_implementation(PACKED)
        with torch.no_grad():
            packed = token_logprobs(model, longest.to(device), 1.0)
        if _close(packed, alone):
            return "packed", ""
        reason = "its layers mix tokens outside of the attention that transformers can replace"
    except ValueError as error:
        reason = str(error)
    except (AttributeError, KeyError, RuntimeError, TypeError):
        reason = "its layers do not accept the arguments of packed attention"
    model.set_attn_implementation(own)
    batch = pad(rows).to(device)
    with torch.no_grad():
        padded = token_logprobs(model, batch, 1.0)[batch.tokens != NO_TOKEN]
    if not _close(padded, alone):
        raise UserError(
            f"{type(model).__name__} cannot be trained here: the log-probabilities of a sequence depend on other "
            "sequences in the batch or on later tokens"
        )
    return "padded", reason


def _close(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.allclose(first, second, rtol=1e-4, atol=1e-4)


def _check_reach(config: Any, max_length: int) -> None:
    """Raise ValueError for attention windows and chunks shorter than `max_length`."""
    for name in ("sliding_window", "attention_chunk_size"):
        reach = getattr(config, name, None)
        if reach is not None and max_length > reach:
            raise ValueError(f"its attention looks back {reach} tokens, less than model.max_length {max_length}")


def _check_rotary(config: Any, max_length: int) -> None:
    """Raise UserError for rotary embeddings that depend on the length; engines choose them once, not per batch."""
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
