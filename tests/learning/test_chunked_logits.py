"""Logits computed in chunks give the same log-probabilities and gradients, and their memory does not grow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, GPTNeoXConfig, LlamaConfig

from marl_ray.config import LoraConfig
from marl_ray.learning import logprobs, policy_model
from marl_ray.learning.gradient_accumulator import GradientAccumulator
from marl_ray.learning.logprobs import NO_TOKEN, head_logprobs_and_entropies, token_logprobs_and_entropies
from marl_ray.learning.memory_profile import MicroBatchShape, profile_memory
from marl_ray.learning.micro_batches import trainable_rows
from marl_ray.learning.policy_model import has_final_head, short_batch
from marl_ray.learning.ranks import SINGLE_RANK, RankGroup
from marl_ray.learning.sharding import full_tensor
from marl_ray.models.lora import trainable
from tests.learning.builders import SHAPE, VOCABULARY, some_groups, tiny_learner, weigh
from tests.learning.rank_processes import run_ranks


@contextmanager
def chunks_of(rows: int, width: int = VOCABULARY) -> Iterator[None]:
    """Compute all logits in chunks of this number of rows."""
    before = policy_model.CHUNKED_ABOVE, logprobs.HEAD_CHUNK_NUMBERS
    policy_model.CHUNKED_ABOVE, logprobs.HEAD_CHUNK_NUMBERS = 0, rows * width
    try:
        yield
    finally:
        policy_model.CHUNKED_ABOVE, logprobs.HEAD_CHUNK_NUMBERS = before


@pytest.mark.parametrize("rows", [1, 2, 5, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunks_of_the_head_follow_the_definition(rows: int, temperature: float) -> None:
    source = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*shape, dtype=torch.float64, generator=source, requires_grad=True)
        for shape in ((5, 3), (7, 3), (7,))
    )
    tokens = torch.tensor([0, 2, NO_TOKEN, 6, 2])
    with chunks_of(rows, 7):
        found, entropies = head_logprobs_and_entropies(hidden, weight, bias, tokens, temperature)
        expected, others = token_logprobs_and_entropies(hidden @ weight.T + bias, tokens, temperature)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(entropies, others)
        assert not entropies.requires_grad
        torch.autograd.gradcheck(
            lambda *x: head_logprobs_and_entropies(*x, tokens, temperature)[0], (hidden, weight, bias)
        )
        torch.autograd.gradcheck(
            lambda *x: head_logprobs_and_entropies(*x, tokens, temperature, True), (hidden, weight, bias)
        )
        frozen, _ = head_logprobs_and_entropies(hidden, weight.detach(), None, tokens, temperature)
        frozen.sum().backward()
    assert weight.grad is None
    assert hidden.grad is not None


WAYS: list[dict[str, Any]] = [
    {},
    {"layout": "padded"},
    {"lora": LoraConfig(rank=2), "kl": 0.3},
    {"gradient_checkpointing": True, "loss": "clip", "kl": 0.3, "reference_kl": "k3_in_loss"},
    {"entropy_coef": 0.1},
]


def gradients(ranks: RankGroup, folder: str, way: dict[str, Any], rows: int) -> tuple[list[Any], list[torch.Tensor]]:
    """Return loss, entropy, log-probabilities and gradient of a mini-batch; rows 0: without chunks."""
    learner = tiny_learner(Path(folder), ranks=ranks, microbatch_tokens=48, **way)
    mini_batch = weigh(some_groups(7, 3), [1.0, 1.0], "magrpo", "sequence_sum")
    ours = trainable_rows(mini_batch.groups) if learner.reference is None else learner.reference.rows(mini_batch.groups)

    def computed() -> tuple[list[Any], list[torch.Tensor]]:
        gradient = GradientAccumulator(learner.logprob_model, learner.settings)
        gradient.add(ours, 7)
        gradient.close(mini_batch.normalizer)
        known = [float(part.sum()) for part in learner.logprob_model.logprobs(ours, 48)]
        tensors = [full_tensor(parameter.grad) for parameter in trainable(learner.policy)]
        return [gradient.loss, gradient.entropy, *known], tensors

    assert learner.logprob_model.final_head
    if not rows:
        return computed()
    with chunks_of(rows):
        return computed()


def assert_close(found: tuple[list[Any], list[torch.Tensor]], expected: tuple[list[Any], list[torch.Tensor]]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    for own, other in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_chunks_do_not_change_a_learners_gradient(tiny_policy: Path, way: dict[str, Any]) -> None:
    whole, parts = (gradients(SINGLE_RANK, str(tiny_policy), way, rows) for rows in (0, 3))
    assert_close(parts, whole)


@pytest.mark.slow
@pytest.mark.parametrize("way", [WAYS[0], WAYS[2], WAYS[3]], ids=str)
def test_chunks_do_not_change_the_gradient_of_two_ranks(tiny_policy: Path, way: dict[str, Any]) -> None:
    assert_close(run_ranks(2, gradients, str(tiny_policy), way, 3)[0], gradients(SINGLE_RANK, str(tiny_policy), way, 0))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LlamaConfig(**SHAPE), True),
        (GPTNeoXConfig(**{k: v for k, v in SHAPE.items() if k not in ("head_dim", "num_key_value_heads")}), True),
        (Gemma2Config(**SHAPE), False),
        (CohereConfig(**SHAPE), False),
    ],
    ids=lambda case: getattr(case, "model_type", str(case)),
)
def test_models_that_change_the_logits_after_the_head_have_no_chunks(config: Any, expected: bool) -> None:
    model = AutoModelForCausalLM.from_config(config)
    assert has_final_head(model, short_batch("padded")) is expected
    assert "forward" not in vars(model.get_output_embeddings())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_memory_of_logits_does_not_grow_with_the_tokens(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LlamaConfig(**SHAPE | {"vocab_size": 5000})
    shapes = [MicroBatchShape(1, 8, completions, 32, accumulated=True) for completions in (8, 16)]

    def peaks() -> list[int]:
        profiles = [profile_memory(config, shape, LoraConfig(), True, dtype, on_gpu=True) for shape in shapes]
        return [profile.activations + profile.logits for profile in profiles]

    plain = peaks()
    monkeypatch.setattr(policy_model, "CHUNKED_ABOVE", 0)
    monkeypatch.setattr(logprobs, "HEAD_CHUNK_NUMBERS", 64 * 5000)
    chunked = peaks()
    item = 2 if dtype == "bfloat16" else 4
    more = 8 * 32 * 5000 * item
    assert plain[1] - plain[0] > 1.5 * more, "logits and their gradient"
    assert chunked[1] - chunked[0] < 0.2 * more, "hidden states of the additional tokens"
    assert chunked[1] < 0.7 * plain[1]


def test_small_micro_batches_are_computed_at_once() -> None:
    # The default number of tokens on CPUs, and the largest vocabulary.
    assert policy_model.CHUNKED_ABOVE >= 2048 * 262_144
