"""A causal language model as a policy: loading, log-probabilities of sampled tokens, micro-batch layouts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from marl_ray.core.errors import UserError
from marl_ray.learning.attention import PACKED, PackedGroups
from marl_ray.learning.json_grammars import JsonGrammars
from marl_ray.learning.logprobs import head_logprobs_and_entropies, token_logprobs_and_entropies
from marl_ray.learning.micro_batches import NO_TOKEN, Layout, MicroBatch, MicroBatcher, pack, pad
from marl_ray.learning.precision import computing_in, first_layer_of_each_kind
from marl_ray.learning.prompt_rows import PromptRow, WeightedCompletion
from marl_ray.learning.ranks import SINGLE_RANK, RankGroup
from marl_ray.learning.torch_private import change_count
from marl_ray.models.weight_files import stored_dtypes


def load_policy(name: str, trust_remote_code: bool, device: torch.device, ranks: RankGroup = SINGLE_RANK) -> Any:
    """Return the model with float32 master weights and without dropout, so that it agrees with the sampler.

    A model to be sharded over several ranks is on rank 0's CPU, with weights in the dtype of its files, from which the
    operating system reads them when they are used; on other ranks it is on the meta device.
    """
    from transformers import AutoConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # which it shows even for small files
    config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    remove_noise(config)
    if ranks.rank:
        return empty_model(config, trust_remote_code)
    model = _load_as_stored(name, config, trust_remote_code)
    _mend_generation_config(model)
    if ranks.is_single:
        model.to(device=device, dtype=torch.float32)  # one tensor after another
        _set_dtype(model.config, torch.float32)
    return model.train()


def _mend_generation_config(model: Any) -> None:
    """Make the generation config valid, because transformers would refuse to save the model with it.

    Published models have values of sampling without `do_sample`. Training ignores all of these values.
    """
    from transformers import GenerationConfig

    config = getattr(model, "generation_config", None)
    if config is None or _is_valid(config):
        return
    config.do_sample = True
    if not _is_valid(config):
        model.generation_config = GenerationConfig(
            bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
        )


def _is_valid(generation_config: Any) -> bool:
    try:
        generation_config.validate(strict=True)
    except ValueError:
        return False
    return True


def _load_as_stored(name: str, config: Any, trust_remote_code: bool) -> Any:
    """Return the model in the dtype that its config names, if all of its weights are stored in this dtype, or in
    float32."""
    from huggingface_hub import try_to_load_from_cache
    from transformers import AutoModelForCausalLM

    def load(dtype: torch.dtype) -> Any:
        return AutoModelForCausalLM.from_pretrained(
            name, config=config, dtype=dtype, trust_remote_code=trust_remote_code
        )

    named = config.dtype
    if named not in (torch.bfloat16, torch.float16):
        return load(torch.float32)
    model = load(named)
    folder = Path(name)
    if not folder.is_dir():
        folder = Path(try_to_load_from_cache(name, "config.json") or "").parent
    # A buffer that the model computes in 16 bits would differ from the same buffer in float32.
    has_narrow_buffer = named in {buffer.dtype for buffer in model.buffers()}
    if has_narrow_buffer or stored_dtypes(folder) != {named}:
        return load(torch.float32)
    return model


def _set_dtype(config: Any, dtype: torch.dtype) -> None:
    """Set the dtype of a configuration and of its nested configurations, as `from_pretrained` does."""
    config.dtype = dtype
    for key in config.sub_configs:
        nested = getattr(config, key, None)
        if nested is not None:
            nested.dtype = dtype


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


CHUNKED_ABOVE = 2**29
"""Number of logits above which they are computed in chunks: 2 GiB in float32."""


@dataclass(frozen=True, slots=True)
class LogprobModel:
    """A model that computes log-probabilities of tokens at the sampling temperature.

    `dtype` is that of the computation (see `marl_ray.learning.precision`), `ranks` the rank group that shards the
    model, `final_head` the result of `has_final_head`, and `grammars` has the tokens that JSON schemas allow.
    """

    model: Any
    layout: Layout
    temperature: float
    dtype: torch.dtype
    ranks: RankGroup = SINGLE_RANK
    final_head: bool = False
    grammars: JsonGrammars | None = None

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
        # Micro-batches have the same completion objects, in another order.
        numbers: dict[int, int] = {}
        for row in rows:
            for completion in row.completions:
                numbers[id(completion)] = len(numbers)
        batcher = MicroBatcher(max_tokens, self.layout, self.ranks)
        micro_batches = batcher.per_row(rows) if per_row else [*batcher.add(rows), *batcher.flush()]

        by_number: dict[int, torch.Tensor] = {}
        for micro_batch in micro_batches:
            batch = micro_batch.to(self.device)
            with torch.no_grad():
                logprobs, _ = self.score(batch)
            known = logprobs[batch.tokens != NO_TOKEN].cpu()
            lengths = [len(completion.token_ids) for completion in batch.completions]
            # An idle micro-batch has no completions, but splitting gives one part.
            for completion, part in zip(batch.completions, known.split(lengths), strict=False):
                by_number[numbers[id(completion)]] = part
        for of_rank in self.ranks.all_gather(by_number):
            by_number |= of_rank
        return [by_number[number] for number in range(len(numbers))]

    def score(self, batch: MicroBatch, entropy_gradient: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log pi of each token at the temperature and the entropy of its distribution, [B * C] each.

        Entropies have a gradient only with `entropy_gradient`. More than CHUNKED_ABOVE logits are computed in chunks,
        whose memory does not grow with the tokens.
        """
        head = self.model.get_output_embeddings()
        allowed = None
        if self.grammars is not None:
            allowed = self.grammars.allowed(batch)
        if self.final_head and len(batch.tokens) * head.out_features > CHUNKED_ABOVE:
            return _score_in_chunks(self.model, batch, self.temperature, entropy_gradient, allowed)
        logits = token_logits(self.model, batch)
        return token_logprobs_and_entropies(logits, batch.tokens, self.temperature, entropy_gradient, allowed)


def token_logprobs(model: Any, batch: MicroBatch, temperature: float) -> torch.Tensor:
    """Return log pi(token_k | prompt, tokens before k) at the temperature, [B * C]; 0 without a predicted token."""
    return token_logprobs_and_entropies(token_logits(model, batch), batch.tokens, temperature)[0]


def token_logits(model: Any, batch: MicroBatch) -> torch.Tensor:
    """Return the model's logits, [B * C, V], in its compute dtype."""
    logits = _run(model, batch)
    if not _selects_columns(model):
        logits = logits[:, batch.columns]
    return logits.flatten(0, 1)


def _run(model: Any, batch: MicroBatch) -> torch.Tensor:
    """Return the output of the model's head, for all columns of the input if the model cannot select columns."""
    arguments: dict[str, Any] = {"input_ids": batch.input_ids, "use_cache": False}
    if batch.groups is not None:
        arguments |= {"position_ids": batch.position_ids, "groups": batch.groups}
    if _selects_columns(model):
        arguments["logits_to_keep"] = batch.columns
    output: torch.Tensor = model(**arguments).logits
    return output


def _selects_columns(model: Any) -> bool:
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def _score_in_chunks(
    model: Any, batch: MicroBatch, temperature: float, entropy_gradient: bool, allowed: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `LogprobModel.score` without memory for all logits.

    The head computes log-probabilities and entropies in place of logits. It does so within the model's forward pass,
    in which FSDP and `cast_on_forward` provide its weights.
    """
    head = model.get_output_embeddings()

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        if not _selects_columns(model):
            hidden = hidden[:, batch.columns]
        scores = head_logprobs_and_entropies(
            hidden.flatten(0, 1), head.weight, head.bias, batch.tokens, temperature, entropy_gradient, allowed
        )
        return torch.stack(scores, -1).view(*hidden.shape[:2], 2)

    with _head_replaced(head, forward):
        logprobs, entropies = _run(model, batch).flatten(0, 1).unbind(-1)
    if not entropy_gradient:
        entropies = entropies.detach()
    return logprobs, entropies


@contextmanager
def _head_replaced(head: torch.nn.Module, forward: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    head.forward = forward
    try:
        yield
    finally:
        del head.forward


def short_batch(layout: Layout) -> MicroBatch:
    """Return a micro-batch of four tokens."""
    row = _row_of((2, 3))
    return pack([row]) if layout == "packed" else pad([row])


def _row_of(*completions: tuple[int, ...]) -> PromptRow:
    """Return a prompt of two tokens with completions of these token ids."""
    weighted = [WeightedCompletion(token_ids, (0.0,) * len(token_ids), 0.0) for token_ids in completions]
    return PromptRow((0, 1), tuple(weighted))


@torch.no_grad()
def has_final_head(model: Any, batch: MicroBatch) -> bool:
    """Return whether the model's logits are the output of a linear layer, unchanged, for any micro-batch. Some models
    scale them, or limit them by a hyperbolic tangent."""
    head = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear:
        return False
    outputs: list[tuple[torch.Tensor, int]] = []

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        output = hidden.new_zeros(*hidden.shape[:-1], 2)
        outputs.append((output, change_count(output)))
        return output

    try:
        with _head_replaced(head, forward):
            logits = _run(model, batch)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return False  # the model's own code expects the width of the vocabulary
    return any(logits is output and change_count(logits) == count for output, count in outputs)


def probe_layout(model: Any, max_length: int, ranks: RankGroup) -> tuple[Layout, str, bool]:
    """Return the results of `choose_layout` and `has_final_head`, which rank 0 runs on its full model, and set the
    model's attention on every rank."""
    if ranks.is_single:
        return _probe(model, max_length)
    chosen: tuple[Layout, str, bool] = ("packed", "", False)
    if ranks.rank == 0:
        # The model is on the CPU, where a pass through all layers of 7B takes 20 s.
        with first_layer_of_each_kind(model):
            chosen = _probe(model, max_length)
    chosen = ranks.broadcast(chosen)
    model.set_attn_implementation(ranks.broadcast(model.config._attn_implementation))
    return chosen


def _probe(model: Any, max_length: int) -> tuple[Layout, str, bool]:
    with computing_in(model, torch.float32):
        layout, reason = choose_layout(model, model.device, max_length)
        return layout, reason, has_final_head(model, short_batch(layout).to(model.device))


def choose_layout(model: Any, device: torch.device, max_length: int) -> tuple[Layout, str]:
    """Set the model's attention; return the layout of its micro-batches, and the reason if they are not packed.

    Both layouts are compared, on two short completions, with the model's own attention over each completion alone.
    Raises UserError if both layouts fail, and for rotary embeddings that depend on a batch's length.
    """
    config = model.config.get_text_config()
    _check_rotary(config, max_length)
    attention = model.config._attn_implementation
    if getattr(config, "attn_logit_softcapping", None) is not None:
        attention = "eager"  # transformers' fused attention ignores softcapping silently
    model.set_attn_implementation(attention)
    completions = ((3, 2, 1, 0), (2, 3, 1))
    rows = [_row_of(token_ids) for token_ids in completions]
    with torch.no_grad():
        alone = torch.cat([token_logprobs(model, pad([row]).to(device), 1.0) for row in rows])

    together = pack([_row_of(*completions)])
    assert together.groups is not None
    # Attention compares the length of sequences with its window.
    groups = PackedGroups(replace(group, longest=max_length) for group in together.groups.groups)
    together = replace(together, groups=groups)
    try:
        _check_reach(config, max_length)
        model.set_attn_implementation(PACKED)
        with torch.no_grad():
            packed = token_logprobs(model, together.to(device), 1.0)
        if _close(packed, alone):
            return "packed", ""
        reason = "its layers mix tokens outside of the attention that transformers can replace"
    except ValueError as error:
        reason = str(error)
    except (AttributeError, KeyError, RuntimeError, TypeError):
        reason = "its layers do not accept the arguments of packed attention"
    model.set_attn_implementation(attention)
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
    per_kind_of_layer = [value for value in rope.values() if isinstance(value, dict)]
    for settings in (rope, *per_kind_of_layer):
        if settings.get("rope_type") not in ("dynamic", "longrope"):
            continue
        original = settings.get("original_max_position_embeddings") or config.max_position_embeddings
        if max_length > original:
            raise UserError(
                f"{type(config).__name__.removesuffix('Config')} cannot be trained here: its rotary embedding changes "
                f"beyond {original} tokens: lower model.max_length"
            )
