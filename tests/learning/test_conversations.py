"""The turns of a conversation in one row: each sampled token is in the loss once, with its own turn's weight.

The reference is a row per completion, each with its own prompt, in the padded layout with the model's own attention.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from marl_ray.config import OptimizerConfig
from marl_ray.core.batch import Group
from marl_ray.core.episode import Completion, sibling_calls
from marl_ray.learning.gradient_accumulator import GradientAccumulator
from marl_ray.learning.micro_batches import MicroBatch, MicroBatcher, trainable_rows
from marl_ray.learning.policy_model import LogprobModel
from marl_ray.learning.prompt_rows import PromptRow
from tests.learning.builders import VOCABULARY, tiny_qwen2, with_packed_attention

LARGE = 10_000
"""A bound on micro-batches that every row respects."""


@pytest.fixture(scope="module")
def plain() -> Any:
    return in_float64(tiny_qwen2())


@pytest.fixture(scope="module")
def packed(plain: Any) -> Any:
    return in_float64(with_packed_attention(plain))


def in_float64(model: Any) -> Any:
    """Let the model compute in float64 throughout; its normalisation would round to float32."""
    for module in model.double().modules():
        if isinstance(module, Qwen2RMSNorm):
            module.forward = partial(functional.rms_norm, normalized_shape=(32,), weight=module.weight, eps=1e-6)
    return model


class Conversations:
    """Groups of conversations as the rollout samples them: each prompt is an earlier one with its answer and a
    message."""

    def __init__(self, seed: int, longest: int = 6) -> None:
        self.chance, self.longest = random.Random(seed), longest

    def ids(self, longest: int) -> tuple[int, ...]:
        return tuple(self.chance.randrange(VOCABULARY) for _ in range(self.chance.randint(1, longest)))

    def group(self, turn: int, prompt: tuple[int, ...], size: int = 3) -> Group:
        answers = tuple(self.ids(self.longest) for _ in range(size))
        completions = tuple(
            Completion(ids, "", tuple(self.chance.uniform(-4, -1) for _ in ids), "stop", ((0, len(ids)),))
            for ids in answers
        )
        weights = tuple(self.chance.choice([-1.5, 0.5, 2.0]) for _ in answers)
        return Group(turn, sibling_calls(prompt, completions), weights, weights)

    def chain(self, turns: int) -> list[Group]:
        """Return one group per turn; a random answer is continued."""
        groups = [self.group(0, self.ids(5))]
        for turn in range(1, turns):
            answer = self.chance.choice(groups[-1].completions)
            groups.append(self.group(turn, (*groups[-1].prompt_ids, *answer.token_ids, *self.ids(4))))
        return groups

    def tree(self) -> list[Group]:
        """Return the groups of a tree of two turns, in which every answer is continued."""
        root = self.group(0, self.ids(5))
        children = ((*root.prompt_ids, *c.token_ids, *self.ids(4)) for c in root.completions)
        return [root, *(self.group(1, prompt) for prompt in children)]


def joined(rows: Sequence[PromptRow], max_tokens: int = LARGE) -> list[MicroBatch]:
    batcher = MicroBatcher(max_tokens, "packed")
    return [*batcher.add(rows), *batcher.flush()]


def gradient(model: Any, layout: Any, rows: Sequence[PromptRow], **settings: Any) -> tuple[float, torch.Tensor]:
    """Return the loss, and the gradient of all parameters as one vector."""
    options = {"importance": "truncate", "microbatch_tokens": LARGE} | settings
    policy = LogprobModel(model, layout, 0.9, torch.float64)
    accumulator = GradientAccumulator(policy, OptimizerConfig(**options))
    accumulator.add(rows, len(rows))
    accumulator.close(7)
    return accumulator.loss, torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("shape", ["chain", "tree", "several", "unequal lengths"])
@pytest.mark.parametrize("loss", ["policy_gradient", "gspo"])
def test_the_gradient_equals_that_of_a_row_per_turn(plain: Any, packed: Any, shape: str, loss: str) -> None:
    for seed in range(2):
        source = Conversations(seed, longest=30 if shape == "unequal lengths" else 6)
        groups = source.tree() if shape == "tree" else source.chain(4)
        if shape == "several":
            groups += source.chain(3) + source.tree()
        rows = trainable_rows(groups)
        (micro_batch,) = joined(rows)
        trained = [c.token_ids for group in groups for c in group.completions]
        assert sorted(c.token_ids for c in micro_batch.completions) == sorted(trained), "every completion once"
        assert micro_batch.input_ids.numel() < sum(row.size for row in rows), "shared tokens are computed once"
        own_loss, own = gradient(packed, "packed", rows, loss=loss)
        their_loss, theirs = gradient(plain, "padded", rows, loss=loss)
        assert own_loss == pytest.approx(their_loss, rel=1e-10)
        torch.testing.assert_close(own, theirs, rtol=1e-8, atol=1e-11)
        assert torch.cosine_similarity(own, theirs, dim=0) > 1 - 1e-12


def test_a_chain_is_one_row_and_further_branches_of_a_tree_are_rows_of_their_own() -> None:
    source = Conversations(0)
    chain = source.chain(4)
    (micro_batch,) = joined(trainable_rows(chain))
    assert micro_batch.groups is not None
    (group,) = micro_batch.groups.groups
    assert group.prompt == len(chain[-1].prompt_ids)
    assert len(group.lengths) == 3 * 3 - 3 + 3, "the three answers that were continued are in the prompt"
    (micro_batch,) = joined(trainable_rows(source.tree()))
    assert micro_batch.groups is not None
    assert len(micro_batch.groups.groups) == 3


def test_tokens_of_the_loss_are_the_sampled_tokens_at_their_positions() -> None:
    groups = Conversations(3).chain(3)
    (micro_batch,) = joined(trainable_rows(groups))
    ids, positions = micro_batch.input_ids[0], micro_batch.position_ids
    assert positions is not None
    sequences = {c.token_ids: (*g.prompt_ids, *c.token_ids) for g in groups for c in g.completions}
    prompts = {c.token_ids: len(g.prompt_ids) for g in groups for c in g.completions}
    number = count()
    for completion in micro_batch.completions:
        for k, token in enumerate(completion.token_ids):
            column = int(micro_batch.columns[at := next(number)])
            assert int(micro_batch.tokens[at]) == token
            before = prompts[completion.token_ids] + k - 1
            assert int(positions[0, column]) == before
            assert int(ids[column]) == sequences[completion.token_ids][before]


def test_logprobs_are_those_of_each_completion_alone(plain: Any, packed: Any) -> None:
    rows = trainable_rows(Conversations(1).chain(3) + Conversations(2).tree())
    own = LogprobModel(packed, "packed", 0.9, torch.float64).logprobs(rows, LARGE)
    theirs = LogprobModel(plain, "padded", 0.9, torch.float64).logprobs(rows, LARGE)
    for ours, other in zip(own, theirs, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("max_tokens", [1, 20, 60, LARGE])
def test_micro_batches_do_not_depend_on_the_portions_in_which_groups_arrive(max_tokens: int) -> None:
    source = Conversations(5)
    rows = [row for _ in range(4) for row in trainable_rows(source.chain(3))]
    at_once = joined(rows, max_tokens)
    batcher = MicroBatcher(max_tokens, "packed")
    one_by_one = [batch for row in rows for batch in batcher.add([row])] + batcher.flush()
    assert [b.input_ids.tolist() for b in one_by_one] == [b.input_ids.tolist() for b in at_once]
    assert sum(len(b.completions) for b in at_once) == sum(len(row.completions) for row in rows)
    if max_tokens == 60:
        assert all(batch.input_ids.numel() <= 60 or len(batch.completions) == 1 for batch in at_once)
        assert len(at_once) < len(rows)


def test_rows_that_do_not_continue_an_answer_stay_apart() -> None:
    source = Conversations(6)
    first = source.group(0, (1, 2, 3))
    another = max((c.token_ids[0] for c in first.completions), default=0) + 1
    second = source.group(1, (1, 2, 3, another % VOCABULARY, 4))
    first_row, second_row = trainable_rows([first, second])
    assert first_row.extended_by(second_row) is None
    assert first_row.extended_by(first_row) is None
