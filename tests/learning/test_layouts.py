"""Log-probabilities, layouts and gradients against a plain computation without batching."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPTJConfig,
    GPTJForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from marl_ray.config import OptimizerConfig
from marl_ray.core.batch import Group
from marl_ray.core.episode import Completion
from marl_ray.core.errors import UserError
from marl_ray.learning.gradient_accumulator import GradientAccumulator
from marl_ray.learning.micro_batches import NO_TOKEN, split_row, trainable_rows
from marl_ray.learning.optimizer import schedule_factor
from marl_ray.learning.policy_model import LogprobModel, choose_layout, token_logprobs
from tests.learning.builders import (
    SHAPE,
    VOCABULARY,
    micro_batches,
    tiny_qwen2,
    to_rows,
    unweighted_group,
    weigh,
    with_packed_attention,
)


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    return tiny_qwen2().double()


def completion(*ids: int) -> Completion:
    return Completion(ids, "", tuple(-1.0 for _ in ids), "stop", ((0, len(ids)),))


def groups() -> list[Group]:
    return [
        unweighted_group(
            0, (5, 6, 7), (completion(1, 2, 3, 0), completion(4, 0), completion(9, 9, 9)), (1.0, 0.0, 3.5)
        ),
        unweighted_group(1, (8,), (completion(3), completion(2, 2, 0), completion(7, 1, 0)), (2.0, 2.5, 0.0)),
    ]


@pytest.fixture(scope="module")
def packed(model: Qwen2ForCausalLM) -> Qwen2ForCausalLM:
    """Return a copy with packed attention."""
    return with_packed_attention(model)


def qwen3() -> Any:
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE))


def llama(**rope: Any) -> Any:
    return LlamaForCausalLM(LlamaConfig(**SHAPE, **({"rope_parameters": rope} if rope else {})))


def gptj() -> Any:
    """Return a model whose attention cannot be replaced."""
    return GPTJForCausalLM(GPTJConfig(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, rotary_dim=4))


def gemma2() -> Any:
    return Gemma2ForCausalLM(Gemma2Config(**SHAPE))


def gemma3(sliding_window: int = 64) -> Any:
    return Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, sliding_window=sliding_window))


def kept(group: Group) -> list[Completion]:
    """Return the completions with a gradient: under mareinforce, completions of non-zero return."""
    return [c for c, value in zip(group.completions, group.returns, strict=True) if value != 0]


def plain_logprobs(model: Qwen2ForCausalLM, prompt: tuple, tokens: tuple, temperature: float) -> torch.Tensor:
    """Return log-probabilities of one sequence, without padding, from the full softmax."""
    ids = torch.tensor([[*prompt, *tokens]])
    scores = torch.log_softmax(model(ids).logits[0].double() / temperature, -1)
    return torch.stack([scores[len(prompt) - 1 + k, t] for k, t in enumerate(tokens)])


@pytest.mark.parametrize("max_tokens", [1, 20, 10_000])
def test_packed_log_probabilities_equal_each_completion_alone(
    model: Qwen2ForCausalLM, packed: Qwen2ForCausalLM, max_tokens: int
) -> None:
    rows = to_rows(groups(), [1.0, 1.0], "mareinforce")
    parts = [part for row in rows for part in split_row(row, max_tokens)]
    got = []
    for batch in micro_batches(rows, max_tokens, "packed"):
        assert batch.input_ids.shape[1] <= max_tokens or len(batch.groups.groups) == 1
        got.append(token_logprobs(packed, batch, 0.7))
    expected = [plain_logprobs(model, row.prompt_ids, s.token_ids, 0.7) for row in parts for s in row.completions]
    assert len(expected) == sum(len(row.completions) for row in rows)
    torch.testing.assert_close(torch.cat(got).double(), torch.cat(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [qwen3, llama, gemma3])
def test_other_architectures_and_checkpointing_equal_the_plain_forward_pass(make: Callable[[], Any]) -> None:
    torch.manual_seed(1)
    plain = make().double()
    packed = with_packed_attention(plain).train()
    packed.gradient_checkpointing_enable()
    (batch,) = micro_batches(to_rows(groups(), [1.0, 1.0], "mareinforce"), 10_000, "packed")
    got = token_logprobs(packed, batch, 1.0)
    got.sum().backward()
    expected = torch.cat([plain_logprobs(plain, g.prompt_ids, c.token_ids, 1.0) for g in groups() for c in kept(g)])
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
    expected.sum().backward()
    for mine, parameter in zip(packed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, parameter.grad, rtol=1e-4, atol=1e-5)


def test_groups_of_unequal_lengths_equal_the_plain_forward_pass(
    model: Qwen2ForCausalLM, packed: Qwen2ForCausalLM
) -> None:
    lengths = (1, 14, 2)
    skewed = unweighted_group(0, (5, 6), tuple(completion(*range(3, 3 + n)) for n in lengths), (1.0, 2.0, 3.0))
    even = unweighted_group(0, (7, 8, 9), (completion(1, 2), completion(3, 4)), (1.0, 2.0))
    (batch,) = micro_batches(to_rows([even, skewed, even], [1.0], "mareinforce"), 10_000, "packed")
    assert [group.gather is None for group in batch.groups.groups] == [False, True, False]
    expected = [
        plain_logprobs(model, g.prompt_ids, c.token_ids, 1.0) for g in (even, skewed, even) for c in g.completions
    ]
    got = token_logprobs(packed, batch, 1.0)
    torch.testing.assert_close(got.double(), torch.cat(expected), rtol=1e-5, atol=1e-5)
    packed.zero_grad()
    model.zero_grad()
    got.sum().backward()
    torch.cat(expected).sum().backward()
    for mine, parameter in zip(packed.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, parameter.grad, rtol=1e-4, atol=1e-6)


def test_models_that_cannot_be_packed_use_the_padded_layout(model: Qwen2ForCausalLM) -> None:
    def chosen(given: Any, max_length: int = 100) -> tuple[str, str]:
        return choose_layout(given, torch.device("cpu"), max_length)

    assert chosen(copy.deepcopy(model)) == ("packed", "")
    assert chosen(gemma3(sliding_window=100)) == ("packed", "")
    assert chosen(gemma3(sliding_window=100), 101) == (
        "padded",
        "its attention looks back 100 tokens, less than model.max_length 101",
    )
    softcapped = gemma2()
    layout, why = chosen(softcapped)
    assert layout == "padded"
    assert "softcap" in why
    assert softcapped.config._attn_implementation == "eager", "fused attention ignores softcapping"
    assert chosen(gptj())[0] == "padded"
    looking_back = copy.deepcopy(model)
    looking_back.model.layers[0].mlp.register_forward_hook(lambda _module, _inputs, output: output.cumsum(1))
    layout, why = chosen(looking_back)
    assert layout == "padded"
    assert "mix tokens outside of the attention" in why


def test_models_that_fit_no_layout_are_rejected(model: Qwen2ForCausalLM) -> None:
    cpu = torch.device("cpu")
    looking_ahead = copy.deepcopy(model)
    looking_ahead.model.layers[0].mlp.register_forward_hook(
        lambda _module, _inputs, output: output + output.mean(1, True)
    )
    with pytest.raises(UserError, match=r"Qwen2ForCausalLM cannot be trained here: .* or on later tokens"):
        choose_layout(looking_ahead, cpu, 100)
    stretched = llama(rope_type="dynamic", factor=2.0, rope_theta=10_000.0)
    with pytest.raises(UserError, match=r"changes beyond 2048 tokens: lower model\.max_length"):
        choose_layout(stretched, cpu, 2049)


@pytest.mark.parametrize("max_tokens", [1, 20, 10_000])
def test_padded_batches_contain_every_token_once_within_the_limit(max_tokens: int) -> None:
    rows = to_rows(shifted(groups()), [1.0, 1.0], "mareinforce")
    batches = list(micro_batches(rows, max_tokens, "padded"))
    for batch in batches:
        assert batch.input_ids.numel() <= max_tokens or len(batch.input_ids) == 1
        assert len(batch.tokens) == len(batch.input_ids) * len(batch.columns)
        nothing = batch.tokens == NO_TOKEN
        assert not batch.weights[nothing].any()
        assert not batch.behaviour_logprobs[nothing].any()
    predicted = [t for batch in batches for t in batch.tokens[batch.tokens != NO_TOKEN].tolist()]
    assert sorted(predicted) == sorted(t for g in groups() for c in g.completions for t in c.token_ids)


def test_completions_of_zero_weight_are_left_out() -> None:
    equal = unweighted_group(0, (5, 6), (completion(1, 0), completion(2, 0)), (1.0, 1.0))
    assert to_rows([equal], [1.0], "magrpo") == []
    rounding = unweighted_group(0, (5,), tuple(completion(i) for i in range(1, 4)), (0.4, 0.4, 0.4))
    assert to_rows([rounding], [1.0], "magrpo") == []
    middle = unweighted_group(0, (5, 6), (completion(1, 0), completion(2, 0), completion(3, 0)), (0.0, 1.0, 2.0))
    (row,) = to_rows([middle], [1.0], "magrpo")
    assert [s.token_ids for s in row.completions] == [(1, 0), (3, 0)]
    assert [s.weight for s in row.completions] == [pytest.approx(-1 / 3), pytest.approx(1 / 3)]


@pytest.mark.parametrize("aggregation", ["sequence_sum", "token_mean"])
def test_gradient_follows_the_definition(model: Qwen2ForCausalLM, packed: Qwen2ForCausalLM, aggregation: str) -> None:
    turn_weights, temperature = [1.5, 0.5], 0.9
    mini_batch = weigh(groups(), turn_weights, "magrpo", aggregation)
    logprob_model = LogprobModel(packed, "packed", temperature, torch.float64)
    gradient = GradientAccumulator(logprob_model, OptimizerConfig(microbatch_tokens=30, importance="none"))
    gradient.add(trainable_rows(mini_batch.groups), len(mini_batch.groups))
    gradient.close(mini_batch.normalizer)
    got = [p.grad.clone() for p in packed.parameters()]

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
    assert gradient.loss == pytest.approx(loss.item(), rel=1e-5)
    for mine, parameter in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-4, atol=1e-6)


def test_every_sampled_token_including_eos_is_trained() -> None:
    rows = to_rows(shifted(groups()), [1.0, 1.0], "mareinforce")
    (batch,) = micro_batches(rows, 10_000, "packed")
    assert batch.tokens.tolist() == [t for g in groups() for c in g.completions for t in c.token_ids]
    assert batch.weights.all()


def shifted(given: list[Group]) -> list[Group]:
    """Return the groups without a return of 0, which would have no gradient."""
    return [replace(g, returns=tuple(r + 1 for r in g.returns)) for g in given]


def test_learning_rate_schedules() -> None:
    constant, linear, cosine = (schedule_factor(name, 2, 12) for name in ("constant", "linear", "cosine"))
    assert [constant(k) for k in (0, 1, 2, 50)] == [pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0, 1.0]
    assert [linear(k) for k in (2, 7, 12, 20)] == [1.0, 0.5, 0.0, 0.0]
    assert cosine(7) == pytest.approx(0.5)
    assert cosine(4) == pytest.approx((1 + math.cos(math.pi * 0.2)) / 2)
