"""Attention over packed groups: each prompt is computed once, and no token attends outside its own completion.

A packed sequence is a row of groups without padding, each a prompt and behind it its completions:

    prompt 1 | completion 1.1 | completion 1.2 | prompt 2 | completion 2.1 ...

A plain causal mask over it would compare every token with every earlier one, nearly all of them strangers. Here the
prompt attends to itself, and the completions, stacked as a batch if their lengths allow it, to the prompt and to
themselves.

It is registered with transformers as the attention named `PACKED`, so that it serves every architecture whose
attention can be chosen there; the groups come through the model's keyword arguments.
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
    """Completions as a batch of n rows of W tokens.

    gather: [n * W], the place of each token among the S tokens of the completions, the last one repeated behind a short
    completion; scatter: [S], where in the batch the S real tokens stand.
    """

    gather: torch.Tensor
    scatter: torch.Tensor


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """How a group lies in the packed sequence: a prompt of P tokens, and behind it n completions of S tokens in all.

    owner: [S], the completion of each token; stack: None if stacking them would cost
    more than comparing all tokens of the completions with each other; longest: tokens of the longest sequence.
    """

    prompt: int
    lengths: tuple[int, ...]
    owner: torch.Tensor
    stack: Stack | None
    longest: int

    @classmethod
    def of(cls, prompt: int, lengths: Sequence[int]) -> PackedGroup:
        """The group of a prompt of so many tokens, with completions of `lengths` tokens, or with none."""
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
        """The same on `device`."""
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
    """query: [1, H, T, D], key and value: [1, K, T, D] with H a multiple of K; returns [1, T, H, D].

    Raises ValueError for what it cannot compute: masks and biases of the model's own, softcapping, attention sinks, a
    window shorter than a sequence.
    Such models are trained in padded batches (see `marl_ray.learning.policy_model.choose_layout`).
    """
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if other.get(name) is not None]
    if not groups:
        raise ValueError("its layers do not hand on what the attention needs to know")
    if attention_mask is not None or unknown:
        what = ", ".join(unknown) or "attention_mask"
        raise ValueError(f"its attention has a mask, bias or sinks of its own ({what})")
    longest = max(group.longest for group in groups)
    if sliding_window is not None and longest > sliding_window:
        raise ValueError(f"its attention looks back {sliding_window} tokens, less than model.max_length {longest}")
    query, key = query.to(value.dtype), key.to(value.dtype)  # rotary embeddings leave autocast's dtype
    # Split once: a slice's gradient is as long as what it was cut from, and nearly all of it zeros.
    sizes = [size for group in groups for size in (group.prompt, len(group.owner))]
    queries, keys, values = (states.split(sizes, dim=2) for states in (query, key, value))
    outputs = []
    for number, group in enumerate(groups):
        prompt, completions = 2 * number, 2 * number + 1
        outputs.append(_prompt(queries[prompt], keys[prompt], values[prompt], scaling))
        if not group.lengths:
            continue
        answers = _skewed if group.stack is None else _stacked
        behind = slice(prompt, completions + 1)
        outputs.append(answers(queries[completions], keys[behind], values[behind], group, scaling))
    return torch.cat(outputs).unsqueeze(0), None


def _prompt(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None) -> torch.Tensor:
    """[P, H, D]"""
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
    """[S, H, D] of completions as a batch, each behind a copy of the prompt. `keys` and `values` are the prompt's and
    the completions'.

    The H / K queries that share a key are rows of one matrix, so that keys and values need not be copied to each head
    too.
    """
    assert group.stack is not None
    stack, count, heads = group.stack, len(group.lengths), keys[0].shape[1]

    def stacked(states: torch.Tensor) -> torch.Tensor:
        """[n, heads, W, D]"""
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
    """[S, H, D] where one completion is so much longer than others that stacking would be mostly padding."""
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
