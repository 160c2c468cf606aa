"""Attention over packed groups: each prompt is computed once, and no token attends outside its own completion.

A packed sequence is a row of groups without padding, each a prompt followed by its completions:

    prompt 1 | completion 1.1 | completion 1.2 | prompt 2 | completion 2.1 ...

The prompt attends to itself, and each completion to the prompt and to itself. In a row with all turns of a
conversation, a completion of an earlier turn attends to the beginning of the prompt, up to its own turn. The function
is registered with transformers as attention `PACKED`, for every architecture whose attention can be replaced there.
Groups are passed as a keyword argument of the model. Two implementations agree up to rounding:

- `torch.nn.attention.varlen`, on a GPU with FlashAttention in 16 bits: each prompt and each completion is a sequence of
  its own length. There are no masks, and a completion's keys are its prompt's and its own.
- elsewhere: fused attention per group, with completions stacked as a batch if their lengths allow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

PACKED = "marl_ray_packed"


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """Position of a group in the packed sequence: a prompt of `prompt` tokens, then completions of S tokens in total.

    - lengths: tokens of each completion;
    - starts: number of prompt tokens before each completion; empty if it is always the whole prompt;
    - owner: [S], the completion of each token;
    - longest: tokens of the longest sequence;
    - gather: [count * W], the indices of the S tokens that arrange completions as a batch of rows of W tokens; the last
      token repeats in short rows. None if a batch costs more than a full mask over all completion tokens;
    - scatter: [S], the entry of each token in the batch, or None.
    """

    prompt: int
    lengths: tuple[int, ...]
    owner: torch.Tensor
    longest: int
    gather: torch.Tensor | None = None
    scatter: torch.Tensor | None = None
    starts: tuple[int, ...] = ()

    @classmethod
    def of(cls, prompt: int, lengths: Sequence[int], starts: Sequence[int] = ()) -> PackedGroup:
        """Return the group of a prompt with completions of these `lengths`, which may be empty, after the first
        `starts` tokens of the prompt (default: after all)."""
        if not lengths:
            return cls(prompt, (), torch.zeros(0, dtype=torch.long), prompt)
        count = len(lengths)
        width = max(lengths)
        total = sum(lengths)
        sizes = torch.tensor(lengths)
        owner = torch.arange(count).repeat_interleave(sizes)
        group = cls(prompt, tuple(lengths), owner, prompt + width)
        if any(start < prompt for start in starts):
            ends = [start + length for start, length in zip(starts, lengths, strict=True)]
            group = replace(group, longest=max(prompt, *ends), starts=tuple(starts))
        # Scores of a batch of completions, and of one mask over all of them.
        if count * width * (prompt + width) > total * (prompt + total):
            return group
        sizes = sizes.unsqueeze(1)
        begins = sizes.cumsum(0) - sizes
        columns = torch.arange(width).unsqueeze(0)
        gather = (begins + columns.minimum(sizes - 1)).flatten()
        scatter = (columns < sizes).flatten().nonzero().squeeze(1)
        return replace(group, gather=gather, scatter=scatter)

    def to(self, device: torch.device) -> PackedGroup:
        """Return a copy on `device`."""
        group = replace(self, owner=self.owner.to(device))
        if self.gather is None or self.scatter is None:
            return group
        return replace(group, gather=self.gather.to(device), scatter=self.scatter.to(device))


class Sequences(NamedTuple):
    """A packed sequence as variable-length sequences of queries and keys, for `varlen_attn`: each prompt with itself,
    each completion with its part of the prompt and itself.

    keys: [K], the indices of the sequences' keys; query_ends, key_ends: int32, ends of the sequences, from 0;
    longest_query, longest_key: tokens of the longest sequence.
    """

    keys: torch.Tensor
    query_ends: torch.Tensor
    key_ends: torch.Tensor
    longest_query: int
    longest_key: int

    @classmethod
    def of(cls, groups: Iterable[PackedGroup], device: torch.device) -> Sequences:
        keys: list[torch.Tensor] = []  # of each sequence
        queries: list[int] = []
        start = 0
        for group in groups:
            prompt = torch.arange(start, start + group.prompt)
            start += group.prompt
            keys.append(prompt)
            queries.append(group.prompt)
            for number, length in enumerate(group.lengths):
                seen = prompt[: group.starts[number]] if group.starts else prompt
                keys.append(torch.cat([seen, torch.arange(start, start + length)]))
                queries.append(length)
                start += length

        def ends(sizes: Sequence[int]) -> torch.Tensor:
            return torch.tensor([0, *accumulate(sizes)], dtype=torch.int32).to(device)

        seen_keys = [len(part) for part in keys]
        return cls(torch.cat(keys).to(device), ends(queries), ends(seen_keys), max(queries), max(seen_keys))


class PackedGroups:
    """The groups of one packed sequence.

    A plain class, because FSDP copies dataclasses and containers among the arguments of every call of every layer in
    search of tensors (`torch.distributed.utils._apply_to_tensors`).
    """

    def __init__(self, groups: Iterable[PackedGroup], is_varlen: bool | None = None) -> None:
        self.groups = tuple(groups)
        self.is_varlen = is_varlen
        """Whether attention uses `varlen_attn`; None: if the tensors allow it."""
        self.longest = max(group.longest for group in self.groups)
        self._sequences: Sequences | None = None

    def to(self, device: torch.device) -> PackedGroups:
        """Return a copy on `device`."""
        return PackedGroups((group.to(device) for group in self.groups), self.is_varlen)

    def sequences(self, device: torch.device) -> Sequences:
        """Return the groups as variable-length sequences, which are made once for all layers."""
        if self._sequences is None:
            self._sequences = Sequences.of(self.groups, device)
        return self._sequences


def has_varlen_kernel(query: torch.Tensor) -> bool:
    """Return True if torch's FlashAttention runs on these queries [..., D]."""
    if query.device.type != "cuda" or query.dtype not in (torch.bfloat16, torch.float16):
        return False
    width = query.shape[-1]
    if width % 8 or width > 256:
        return False
    return torch.cuda.get_device_capability(query.device) >= (8, 0)  # since Ampere


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    groups: PackedGroups | None = None,
    **other: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention: query [1, H, T, D], key and value [1, K, T, D] with H a multiple of K; returns [1, T, H, D].

    Raises ValueError for unsupported attention: masks or biases of the model's own, softcapping, attention sinks, and a
    window shorter than a sequence. Such models are trained in padded batches (`marl_ray.learning.policy_model`).
    """
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if other.get(name) is not None]
    if groups is None:
        raise ValueError("its layers do not pass keyword arguments on to attention")
    if attention_mask is not None or unknown:
        names = ", ".join(unknown) or "attention_mask"
        raise ValueError(f"its attention has a mask, bias or sinks of its own ({names})")
    if sliding_window is not None and groups.longest > sliding_window:
        raise ValueError(
            f"its attention looks back {sliding_window} tokens, less than model.max_length {groups.longest}"
        )
    # Rotary embeddings may have changed the dtype.
    query = query.to(value.dtype)
    key = key.to(value.dtype)
    is_varlen = groups.is_varlen
    if is_varlen is None:
        is_varlen = has_varlen_kernel(query)
    if is_varlen:
        return _varlen(query, key, value, groups.sequences(query.device), scaling), None
    # Split once into prompts and completions in turn: the gradient of a slice has the size of the whole tensor.
    sizes = []
    for group in groups.groups:
        sizes += [group.prompt, len(group.owner)]
    queries = query.split(sizes, dim=2)
    keys = key.split(sizes, dim=2)
    values = value.split(sizes, dim=2)
    outputs = []
    for number, group in enumerate(groups.groups):
        prompt = 2 * number
        both = slice(prompt, prompt + 2)
        outputs.append(_prompt(queries[prompt], keys[prompt], values[prompt], scaling))
        if group.lengths:
            attend = _skewed if group.gather is None else _stacked
            outputs.append(attend(queries[prompt + 1], keys[both], values[both], group, scaling))
    return torch.cat(outputs).unsqueeze(0), None


def _varlen(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sequences: Sequences, scaling: float | None
) -> torch.Tensor:
    """Return attention of all sequences, [1, T, H, D]. FlashAttention aligns the last query of a sequence with its last
    key, so that a completion also sees its whole prompt."""
    output = varlen_attn(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1).index_select(0, sequences.keys),
        value[0].transpose(0, 1).index_select(0, sequences.keys),
        sequences.query_ends,
        sequences.key_ends,
        sequences.longest_query,
        sequences.longest_key,
        scale=scaling,
        window_size=(-1, 0),  # causal
        enable_gqa=True,
    )
    assert isinstance(output, torch.Tensor)
    return output.unsqueeze(0)


def _prompt(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None) -> torch.Tensor:
    """Return causal attention within the prompt, [P, H, D]."""
    repeats = query.shape[1] // key.shape[1]
    output = torch.nn.functional.scaled_dot_product_attention(
        query,
        key.repeat_interleave(repeats, dim=1),
        value.repeat_interleave(repeats, dim=1),
        is_causal=True,
        scale=scaling,
    )
    return output[0].transpose(0, 1)


def _stacked(
    query: torch.Tensor,
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    group: PackedGroup,
    scaling: float | None,
) -> torch.Tensor:
    """Return attention of completions as a batch, each after a copy of the prompt, [S, H, D].

    `keys` and `values` each hold the prompt's and the completions' states. The H / K queries that share a key are rows
    of one matrix, so keys and values are not copied per head.
    """
    gather = group.gather
    assert gather is not None
    assert group.scatter is not None
    count = len(group.lengths)
    heads = keys[0].shape[1]

    def stacked(states: torch.Tensor) -> torch.Tensor:
        """Return the states as [n, heads, W, D]."""
        return states[0].index_select(1, gather).unflatten(1, (count, -1)).transpose(0, 1)

    def behind_prompt(states: Sequence[torch.Tensor]) -> torch.Tensor:
        prompt, completions = states
        return torch.cat([prompt.expand(count, -1, -1, -1), stacked(completions)], dim=2)

    queries = stacked(query).unflatten(1, (heads, -1))  # [n, K, H / K, W, D]
    repeats, width = queries.shape[2:4]
    seen = torch.ones(width, group.prompt + width, dtype=torch.bool, device=query.device).tril(group.prompt)
    mask = seen.repeat(repeats, 1)
    if group.starts:  # one mask per completion, [n, 1, H / K * W, P + W]
        visible = torch.nn.functional.pad(_visible(group, query.device), (0, width), value=True)
        mask = (mask & visible.unsqueeze(1)).unsqueeze(1)
    output = torch.nn.functional.scaled_dot_product_attention(
        queries.flatten(2, 3),
        behind_prompt(keys),
        behind_prompt(values),
        attn_mask=mask,
        scale=scaling,
    )
    output = output.unflatten(2, (repeats, width)).flatten(1, 2)
    return output.transpose(1, 2).flatten(0, 1).index_select(0, group.scatter)


def _skewed(
    query: torch.Tensor,
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    group: PackedGroup,
    scaling: float | None,
) -> torch.Tensor:
    """Return attention with a full mask, [S, H, D], for lengths so unequal that a batch would be mostly padding."""
    repeats = query.shape[1] // keys[0].shape[1]
    same_completion = (group.owner.unsqueeze(1) == group.owner).tril()
    if group.starts:
        prompt = _visible(group, query.device)[group.owner]
    else:
        prompt = same_completion.new_ones(len(group.owner), group.prompt)
    seen = torch.cat([prompt, same_completion], dim=1)
    output = torch.nn.functional.scaled_dot_product_attention(
        query,
        torch.cat(list(keys), dim=2).repeat_interleave(repeats, dim=1),
        torch.cat(list(values), dim=2).repeat_interleave(repeats, dim=1),
        attn_mask=seen,
        scale=scaling,
    )
    return output[0].transpose(0, 1)


def _visible(group: PackedGroup, device: torch.device) -> torch.Tensor:
    """Return which prompt tokens each completion attends to, [n, P]."""
    starts = torch.tensor(group.starts, device=device).unsqueeze(1)
    return torch.arange(group.prompt, device=device) < starts


AttentionInterface.register(PACKED, packed_attention)
