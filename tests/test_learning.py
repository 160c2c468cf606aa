"""The loss: which tokens count, with which weight, against a plain computation without any batching."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from marl_ray.learning.batching import Row, micro_batches, split_row, to_rows
from marl_ray.learning.learner import schedule_factor
from marl_ray.learning.policy import token_logprobs
from marl_ray.learning.returns import expected_returns
from marl_ray.messages import Completion, Group

VOCABULARY = 40


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).double()


def completion(*ids: int) -> Completion:
    return Completion(ids, "", tuple(-1.0 for _ in ids), "stop", 0)


def groups() -> list[Group]:
    return [
        Group(0, (5, 6, 7), (completion(1, 2, 3, 0), completion(4, 0), completion(9, 9, 9)), (1.0, 0.0, 3.5)),
        Group(1, (8,), (completion(3), completion(2, 2, 0), completion(7, 1, 0)), (2.0, 2.5, 0.0)),
    ]


def plain_logprobs(model: Qwen2ForCausalLM, prompt: tuple, tokens: tuple, temperature: float) -> torch.Tensor:
    """One sequence, no padding, the whole softmax."""
    ids = torch.tensor([[*prompt, *tokens]])
    scores = torch.log_softmax(model(ids).logits[0].double() / temperature, -1)
    return torch.stack([scores[len(prompt) - 1 + k, t] for k, t in enumerate(tokens)])


@pytest.mark.parametrize("max_tokens", [1, 20, 10_000])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_log_probabilities_are_those_of_each_completion_alone(
    model: Qwen2ForCausalLM, max_tokens: int, attention: str
) -> None:
    model.set_attn_implementation(attention)
    rows = to_rows(groups(), [1.0, 1.0], "mareinforce", False, "sequence_sum")
    parts = [part for row in rows for part in split_row(row, max_tokens)]
    seen = 0
    for batch in micro_batches(rows, max_tokens, pad_id=0):
        assert batch.input_ids.numel() <= max_tokens or len(batch.input_ids) == 1
        got = token_logprobs(model, batch, 0.7)
        width = batch.tokens.shape[1]
        for index in range(len(batch.input_ids)):
            row = next(r for r in parts if same_tokens(r, batch.tokens[index], batch.mask[index]))
            expected = torch.cat([plain_logprobs(model, row.prompt_ids, s.token_ids, 0.7) for s in row.samples])
            torch.testing.assert_close(got[index, : row.width].double(), expected, rtol=1e-5, atol=1e-5)
            assert got[index, row.width : width].abs().sum() == 0
            seen += len(row.samples)
    assert seen == sum(len(row.samples) for row in rows)


def same_tokens(row: Row, tokens: torch.Tensor, mask: torch.Tensor) -> bool:
    return [t for s in row.samples for t in s.token_ids] == tokens[mask == 1].tolist()


def test_completions_without_a_gradient_are_left_out() -> None:
    equal = Group(0, (5, 6), (completion(1, 0), completion(2, 0)), (1.0, 1.0))
    assert to_rows([equal], [1.0], "magrpo", False, "sequence_sum") == []
    rounding = Group(0, (5,), tuple(completion(i) for i in range(1, 4)), (0.4, 0.4, 0.4))
    assert to_rows([rounding], [1.0], "magrpo", False, "sequence_sum") == []
    middle = Group(0, (5, 6), (completion(1, 0), completion(2, 0), completion(3, 0)), (0.0, 1.0, 2.0))
    (row,) = to_rows([middle], [1.0], "magrpo", False, "sequence_sum")
    assert [s.token_ids for s in row.samples] == [(1, 0), (3, 0)]
    assert [s.weight for s in row.samples] == [pytest.approx(-1 / 3), pytest.approx(1 / 3)]


@pytest.mark.parametrize("aggregation", ["sequence_sum", "token_mean"])
def test_gradient_is_that_of_the_definition(model: Qwen2ForCausalLM, aggregation: str) -> None:
    turn_weights, temperature = [1.5, 0.5], 0.9
    model.zero_grad()
    rows = to_rows(groups(), turn_weights, "magrpo", False, aggregation)
    for batch in micro_batches(rows, 30, pad_id=0):
        (-(batch.weights * token_logprobs(model, batch, temperature)).sum()).backward()
    got = [p.grad.clone() for p in model.parameters()]

    model.zero_grad()
    loss = torch.zeros((), dtype=torch.float64)
    all_tokens = sum(len(c.token_ids) for g in groups() for c in g.completions)
    for group in groups():
        mean = sum(group.returns) / len(group.returns)
        for c, value in zip(group.completions, group.returns, strict=True):
            summed = plain_logprobs(model, group.prompt_ids, c.token_ids, temperature).sum()
            share = 1 / (len(group.returns) * len(groups())) if aggregation == "sequence_sum" else 1 / all_tokens
            loss = loss - turn_weights[group.turn] * share * (value - mean) * summed
    loss.backward()
    for mine, parameter in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-4, atol=1e-6)


def test_every_sampled_token_counts_eos_included() -> None:
    rows = to_rows(shifted(groups()), [1.0, 1.0], "mareinforce", False, "sequence_sum")
    (batch,) = micro_batches(rows, 10_000, pad_id=0)
    assert batch.mask.sum() == sum(len(c.token_ids) for g in groups() for c in g.completions)
    assert (batch.weights != 0).sum() == batch.mask.sum()


def shifted(given: list[Group]) -> list[Group]:
    """Without a return of 0, whose completion would have no gradient."""
    return [replace(g, returns=tuple(r + 1 for r in g.returns)) for g in given]


def test_expected_return_is_discounted() -> None:
    assert expected_returns([1.0, 2.0, 4.0], 0.5) == [1.0 + 0.5 * (2.0 + 0.5 * 4.0), 2.0 + 0.5 * 4.0, 4.0]
    assert expected_returns([], 1.0) == []


def test_schedules() -> None:
    constant, linear, cosine = (schedule_factor(name, 2, 12) for name in ("constant", "linear", "cosine"))
    assert [constant(k) for k in (0, 1, 2, 50)] == [pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0, 1.0]
    assert [linear(k) for k in (2, 7, 12, 20)] == [1.0, 0.5, 0.0, 0.0]
    assert cosine(7) == pytest.approx(0.5)
    assert cosine(4) == pytest.approx((1 + math.cos(math.pi * 0.2)) / 2)
