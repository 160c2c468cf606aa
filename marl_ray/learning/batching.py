"""From groups of completions to padded micro-batches.

Prompts are padded on the left and completions on the right, so that all completions of a micro-batch start
in the same column and logits are needed for the last columns only:

    [pad  prompt | completion pad]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from marl_ray.learning.advantages import group_advantages
from marl_ray.messages import Group


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion and the factor of its summed log-probability in the loss."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    weight: float


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B samples, P prompt columns and C completion columns.

    input_ids, attention_mask, position_ids: [B, P + C]; tokens, mask, behaviour_logprobs: [B, C];
    weights: [B].
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    position_ids: torch.Tensor
    tokens: torch.Tensor
    mask: torch.Tensor
    behaviour_logprobs: torch.Tensor
    weights: torch.Tensor

    def to(self, device: torch.device) -> MicroBatch:
        """The same on `device`."""
        return MicroBatch(*(getattr(self, name).to(device) for name in self.__slots__))


def to_samples(
    groups: Sequence[Group],
    turn_weights: Sequence[float],
    estimator: str,
    whiten: bool,
    aggregation: str,
) -> list[Sample]:
    """Samples whose weights make the loss of DESIGN: minus the sum over samples of weight * sum_k log pi_k.

    sequence_sum: weight = w_t * A / (G * number of groups).
    token_mean: weight = w_t * A / (number of tokens of all groups).
    """
    tokens = sum(len(c.token_ids) for group in groups for c in group.completions)
    samples = []
    for group in groups:
        returns = torch.tensor(group.returns, dtype=torch.float64)
        advantages = group_advantages(returns, estimator, whiten).tolist()
        size = len(group.completions)
        scale = 1 / (size * len(groups)) if aggregation == "sequence_sum" else 1 / max(tokens, 1)
        for completion, advantage in zip(group.completions, advantages, strict=True):
            weight = turn_weights[group.turn] * advantage * scale
            samples.append(Sample(group.prompt_ids, completion.token_ids, completion.logprobs, weight))
    return samples


def micro_batches(samples: Sequence[Sample], max_tokens: int, pad_id: int) -> Iterator[MicroBatch]:
    """Split samples so that each micro-batch has at most `max_tokens` padded tokens (or one sample).

    Samples of like length go together; the order does not matter to the sum.
    """
    ordered = sorted(samples, key=lambda s: (len(s.prompt_ids), len(s.token_ids)))
    pending: list[Sample] = []
    prompt_width = completion_width = 0
    for sample in ordered:
        wider_prompt = max(prompt_width, len(sample.prompt_ids))
        wider_completion = max(completion_width, len(sample.token_ids))
        if pending and (len(pending) + 1) * (wider_prompt + wider_completion) > max_tokens:
            yield _collate(pending, pad_id)
            pending = []
            wider_prompt, wider_completion = len(sample.prompt_ids), len(sample.token_ids)
        pending.append(sample)
        prompt_width, completion_width = wider_prompt, wider_completion
    if pending:
        yield _collate(pending, pad_id)


def _collate(samples: list[Sample], pad_id: int) -> MicroBatch:
    prompt_width = max(len(s.prompt_ids) for s in samples)
    width = max(len(s.token_ids) for s in samples)
    rows, present, tokens, mask, behaviour = [], [], [], [], []
    for sample in samples:
        left = prompt_width - len(sample.prompt_ids)
        right = width - len(sample.token_ids)
        filled = len(sample.prompt_ids) + len(sample.token_ids)
        rows.append([pad_id] * left + [*sample.prompt_ids, *sample.token_ids] + [pad_id] * right)
        present.append([0] * left + [1] * filled + [0] * right)
        tokens.append([*sample.token_ids] + [pad_id] * right)
        mask.append([1.0] * len(sample.token_ids) + [0.0] * right)
        behaviour.append([*sample.behaviour_logprobs] + [0.0] * right)
    attention_mask = torch.tensor(present)
    return MicroBatch(
        input_ids=torch.tensor(rows),
        attention_mask=attention_mask,
        position_ids=(attention_mask.cumsum(-1) - 1).clamp(min=0),
        tokens=torch.tensor(tokens),
        mask=torch.tensor(mask),
        behaviour_logprobs=torch.tensor(behaviour),
        weights=torch.tensor([s.weight for s in samples], dtype=torch.float32),
    )
