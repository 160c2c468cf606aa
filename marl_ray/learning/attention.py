"""Attention over packed groups: each prompt is computed once, and no token attends outside its own completion.

A packed sequence is a row of groups without padding, each a prompt followed by its completions:

    prompt 1 | completion 1.1 | completion 1.2 | prompt 2 | completion 2.1 ...

A causal mask over the whole sequence would compare every token with every earlier one, most of them unrelated. Here the
prompt attends to itself, and the completions attend to the prompt and to themselves, stacked as a batch if their
lengths allow it.

The function is registered with transformers as attention `PACKED`, so it works for every architecture whose attention
can be replaced there. Groups are passed as keyword arguments of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import AttentionInterface

PACKED = "marl_ray_packed"


@dataclass(frozen=True, slots=True)
class Stack:
    """Indices that arrange n completions as a batch of n rows of W tokens.

    gather: [n * W], the index of each entry among the S completion tokens; the last token repeats in short rows.
    scatter: [S], the entry of each token in the batch.
    """

    gather: torch.Tensor
    scatter: torch.Tensor


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """Position of a group in the packed sequence: a prompt of `prompt` tokens, then n completions of S tokens in total.

    owner: [S], the completion of each token. stack: None if stacking costs more than a full mask over all completion
    tokens. longest: tokens of the longest sequence.
    """

    prompt: int
    lengths: tuple[int, ...]
    owner: torch.Tensor
    stack: Stack | None
    longest: int

    @classmethod
    def of(cls, prompt: int, lengths: Sequence[int]) -> PackedGroup:
        """Return the group of a prompt with completions of these `lengths`, which may be empty."""
        if not lengths:
            return cls(prompt, (), torch.zeros(0, dtype=torch.long), None, prompt)
        count, width, size = len(lengths), max(lengths), sum(lengths)
        sizes = torch.tensor(lengths).unsqueeze(1)
        stack = None
        if count * width * (prompt + width) <= size * (prompt + size):
            columns = torch.arange(width).unsqueeze(0)
            first = sizes.cumsum(0) - sizes
            gather = (first + columns.minimum(sizes - 1)).flatten()
            stack = Stack(gather, (columns < sizes).flatten().nonzero().squeeze(1))
        owner = torch.arange(count).repeat_interleave(sizes.squeeze(1))
        return cls(prompt, tuple(lengths), owner, stack, prompt + width)

    def to(self, device: torch.device) -> PackedGroup:
        """Return a copy on `device`."""
        stack = self.stack and Stack(self.stack.gather.to(device), self.stack.scatter.to(device))
        return replace(self, owner=self.owner.to(device), stack=stack)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    groups: Sequence[PackedGroup] = (),
    **other: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention: query [1, H, T, D], key and value [1, K, T, D] with H a multiple of K; returns [1, T, H, D].

    Raises ValueError for unsupported attention: masks or biases of the model's own, softcapping, attention sinks, and a
    window shorter than a sequence. Such models are trained in padded batches (`marl_ray.learning.policy_model`).
    """
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if other.get(name) is not None]
    if not groups:
        raise ValueError("its layers do not pass keyword arguments on to attention")
    if attention_mask is not None or unknown:
        names = ", ".join(unknown) or "attention_mask"
        raise ValueError(f"its attention has a mask, bias or sinks of its own ({names})")
    longest = max(group.longest for group in groups)
    if sliding_window is not None and longest > sliding_window:
        raise ValueError(f"its attention looks back {sliding_window} tokens, less than model.max_length {longest}")
    query, key = query.to(value.dtype), key.to(value.dtype)  # rotary embeddings may have changed the dtype
    # Split once: the gradient of a slice has the size of the whole tensor.
    sizes = [size for group in groups for size in (group.prompt, len(group.owner))]
    queries, keys, values = (states.split(sizes, dim=2) for states in (query, key, value))
    outputs = []
    for number, group in enumerate(groups):
        prompt, completions = 2 * number, 2 * number + 1
        outputs.append(_prompt(queries[prompt], keys[prompt], values[prompt], scaling))
        if not group.lengths:
            continue
        attend = _skewed if group.stack is None else _stacked
        both = slice(prompt, completions + 1)
        outputs.append(attend(queries[completions], keys[both], values[both], group, scaling))
    return torch.cat(outputs).unsqueeze(0), None


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

    `keys` and `values` each hold the prompt's and the completions' states. The H / K queries that share a key are rows of
    one matrix, so keys and values are not copied per head.
    """
    assert group.stack is not None
    stack, count, heads = group.stack, len(group.lengths), keys[0].shape[1]

    def stacked(states: torch.Tensor) -> torch.Tensor:
        """Return the states as [n, heads, W, D]."""
        return states[0].index_select(1, stack.gather).unflatten(1, (count, -1)).transpose(0, 1)

    def behind_prompt(states: Sequence[torch.Tensor]) -> torch.Tensor:
        prompt, completions = states
        return torch.cat([prompt.expand(count, -1, -1, -1), stacked(completions)], dim=2)

    queries = stacked(query).unflatten(1, (heads, -1))  # [n, K, H / K, W, D]
    repeats, width = queries.shape[2:4]
    seen = torch.ones(width, group.prompt + width, dtype=torch.bool, device=query.device).tril(group.prompt)
    output = torch.nn.functional.scaled_dot_product_attention(
        queries.flatten(2, 3),
        behind_prompt(keys),
        behind_prompt(values),
        attn_mask=seen.repeat(repeats, 1),
        scale=scaling,
    )
    output = output.unflatten(2, (repeats, width)).flatten(1, 2)
    return output.transpose(1, 2).flatten(0, 1).index_select(0, stack.scatter)


def _skewed(
    query: torch.Tensor,
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    group: PackedGroup,
    scaling: float | None,
) -> torch.Tensor:
    """Return attention with a full mask, [S, H, D], for lengths so unequal that a batch would be mostly padding."""
    size, repeats = len(group.owner), query.shape[1] // keys[0].shape[1]
    own = (group.owner.unsqueeze(1) == group.owner).tril()
    seen = torch.cat([own.new_ones(size, group.prompt), own], dim=1)
    output = torch.nn.functional.scaled_dot_product_attention(
        query,
        torch.cat(list(keys), dim=2).repeat_interleave(repeats, dim=1),
        torch.cat(list(values), dim=2).repeat_interleave(repeats, dim=1),
        attn_mask=seen,
        scale=scaling,
    )
    return output[0].transpose(0, 1)


AttentionInterface.register(PACKED, packed_attention)
