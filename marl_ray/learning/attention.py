"""Attention over packed groups: each prompt is computed once, and no token attends outside its own completion.

A packed sequence is a row of groups without padding, each a prompt and behind it its completions:

    prompt 1 | completion 1.1 | completion 1.2 | prompt 2 | completion 2.1 ...

A plain causal mask over it would compare every token with every earlier one, nearly all of them strangers. Here the
prompt attends to itself, and the completions, stacked as a batch, to the prompt and to themselves.

It is registered with transformers as the attention named `PACKED`, so that it serves every architecture whose
attention can be chosen there; the groups come through the model's keyword arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

PACKED = "marl_ray_packed"


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """Where a group lies in the packed sequence: a prompt of P tokens and n completions, the longest of W tokens.

    start: the prompt's first token; gather: [n * W], the place of each token of the completions, the last one
    repeated behind a short completion; scatter: [sum of lengths], where the real tokens stand in `gather`.
    """

    start: int
    prompt: int
    completions: int
    gather: torch.Tensor
    scatter: torch.Tensor

    @classmethod
    def at(cls, start: int, prompt: int, lengths: Sequence[int]) -> PackedGroup:
        """The group whose prompt begins at `start`, with completions of `lengths` tokens."""
        sizes = torch.tensor(lengths).unsqueeze(1)
        columns = torch.arange(int(sizes.max())).unsqueeze(0)
        first = start + prompt + sizes.cumsum(0) - sizes
        gather = first + columns.minimum(sizes - 1)
        return cls(start, prompt, len(lengths), gather.flatten(), (columns < sizes).flatten().nonzero().squeeze(1))

    def to(self, device: torch.device) -> PackedGroup:
        """The same on `device`."""
        return PackedGroup(self.start, self.prompt, self.completions, self.gather.to(device), self.scatter.to(device))


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    groups: Sequence[PackedGroup] = (),
    **other: Any,
) -> tuple[torch.Tensor, None]:
    """query: [1, H, T, D], key and value: [1, K, T, D] with H a multiple of K; returns [1, T, H, D].

    Raises ValueError for what it cannot compute: softcapping, attention sinks, a window shorter than a sequence.
    """
    if other.get("softcap") is not None or other.get("s_aux") is not None:
        raise ValueError(f"{type(module).__name__} caps its scores or has attention sinks: it cannot be trained here")
    outputs = []
    for group in groups:
        longest = group.prompt + len(group.gather) // group.completions
        if sliding_window is not None and longest > sliding_window:
            raise ValueError(
                f"{longest} tokens do not fit into the model's sliding window of {sliding_window}: lower max_length"
            )
        outputs.append(_prompt(query, key, value, group, scaling))
        outputs.append(_completions(query, key, value, group, scaling))
    return torch.cat(outputs).unsqueeze(0), None


def _prompt(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: PackedGroup, scaling: float | None
) -> torch.Tensor:
    """[P, H, D]"""
    columns = slice(group.start, group.start + group.prompt)
    output = torch.nn.functional.scaled_dot_product_attention(
        query[:, :, columns],
        key[:, :, columns],
        value[:, :, columns],
        is_causal=True,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output[0].transpose(0, 1)


def _completions(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: PackedGroup, scaling: float | None
) -> torch.Tensor:
    """[sum of lengths, H, D]"""
    columns = slice(group.start, group.start + group.prompt)
    repeats = query.shape[1] // key.shape[1]

    def stacked(states: torch.Tensor) -> torch.Tensor:
        heads = states.index_select(1, group.gather)
        return heads.unflatten(1, (group.completions, -1)).transpose(0, 1)

    def behind_prompt(states: torch.Tensor) -> torch.Tensor:
        shared = states[:, :, columns].expand(group.completions, -1, -1, -1)
        # Not enable_gqa: with a mask, CUDA's fast kernels do not take it.
        return torch.cat([shared, stacked(states[0])], dim=2).repeat_interleave(repeats, dim=1)

    queries = stacked(query[0])
    width = queries.shape[2]
    seen = torch.ones(width, group.prompt + width, dtype=torch.bool, device=query.device).tril(group.prompt)
    output = torch.nn.functional.scaled_dot_product_attention(
        queries, behind_prompt(key), behind_prompt(value), attn_mask=seen, scale=scaling
    )
    return output.transpose(1, 2).flatten(0, 1).index_select(0, group.scatter)


AttentionInterface.register(PACKED, packed_attention)
