"""Probabilities of completions that a JSON schema constrains, against a direct computation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from marl_ray.config import ModelConfig, load
from marl_ray.core.batch import Batch, Group, MiniBatch
from marl_ray.core.episode import Completion, sibling_calls
from marl_ray.learning.json_grammars import JsonGrammars
from marl_ray.learning.logprobs import NO_TOKEN, head_logprobs_and_entropies, token_logprobs_and_entropies
from marl_ray.learning.micro_batches import Layout
from marl_ray.models.json_schemas import schema_text
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.toy import BASE_PATH
from tests.factories import ROOT, with_completions
from tests.learning.builders import tiny_learner

TOKENIZER = load_tokenizer(str(BASE_PATH), ModelConfig())
SCHEMA = json.dumps({"type": "object", "properties": {"x": {"enum": [1, 10, 2]}}, "required": ["x"]})
VALUES = ('{"x":1}', '{"x":10}', '{"x":2}')


def grammars() -> JsonGrammars:
    return JsonGrammars(str(BASE_PATH), TOKENIZER, ModelConfig(), len(TOKENIZER))


def as_completion(text: str, schema: str = SCHEMA) -> Completion:
    ids = (*TOKENIZER(text, add_special_tokens=False).input_ids, TOKENIZER.eos_token_id)
    return Completion(ids, text, (-1.0,) * len(ids), "stop", ((0, len(ids)),), schema)


def bits(masks: torch.Tensor) -> torch.Tensor:
    """Return masks as booleans, [K, V]."""
    words = masks.numpy().view("uint32")
    rows = [[bool(int(row[token // 32]) >> token % 32 & 1) for token in range(len(TOKENIZER))] for row in words]
    return torch.tensor(rows)


def test_masks_allow_the_continuations_of_the_schema() -> None:
    completion = as_completion('{"x":1}')
    allowed = bits(grammars().masks(SCHEMA, completion.token_ids))
    assert allowed[torch.arange(len(completion.token_ids)), list(completion.token_ids)].all()
    assert [TOKENIZER.decode([t]) for t in allowed[0].nonzero().flatten().tolist()] == ["{"]
    assert allowed[-1].nonzero().flatten().tolist() == [TOKENIZER.eos_token_id], "nothing follows a complete value"


@pytest.mark.plugins("travel")
def test_the_schemas_of_the_travel_config_allow_plans() -> None:
    config = load(ROOT / "configs" / "magrpo_travel_config.yaml", "magrpo")
    for agent, field in enumerate(("transportation", "lunch")):
        assignments = [{"day": day, "field": field, "value": "Bistro, Ely"} for day in (1, 2)]
        plan = json.dumps({"agent_id": agent, "assignments": assignments}, separators=(",", ":"))
        assert len(grammars().masks(schema_text(config.agents[agent].json_schema), as_completion(plan).token_ids)) > 20


def test_a_token_outside_of_the_schema_is_reported() -> None:
    with pytest.raises(RuntimeError, match="of a completion is not allowed by"):
        grammars().masks(SCHEMA, as_completion('{"y":1}').token_ids)


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_masked_logprobs_are_those_of_the_renormalized_distribution(entropy_gradient: bool) -> None:
    torch.manual_seed(1)
    logits = torch.randn(4, 70, dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([3, 69, NO_TOKEN, 40])
    allowed = torch.rand(4, 70) < 0.3
    allowed[torch.arange(4), tokens.clamp(min=0)] = True
    allowed[1] = True
    padded = torch.nn.functional.pad(allowed, (0, 26)).view(4, 3, 32).long()
    words = (padded << torch.arange(32)).sum(-1).to(torch.int32)

    expected = (logits / 0.7).masked_fill(~allowed, -torch.inf).log_softmax(-1)
    chosen = torch.stack([expected[row, token] for row, token in ((0, 3), (1, 69), (3, 40))])
    entropies = -(expected.exp() * expected.masked_fill(~allowed, 0.0)).sum(-1)[[0, 1, 3]]
    found, of_rows = token_logprobs_and_entropies(logits, tokens, 0.7, entropy_gradient, words)
    torch.testing.assert_close(found[[0, 1, 3]], chosen)
    torch.testing.assert_close(of_rows[[0, 1, 3]], entropies)
    factor = float(entropy_gradient)
    (wanted,) = torch.autograd.grad((chosen * torch.tensor([1.0, 2.0, 3.0])).sum() + factor * entropies.sum(), logits)
    total = (found[[0, 1, 3]] * torch.tensor([1.0, 2.0, 3.0])).sum()
    (gradient,) = torch.autograd.grad(total + (of_rows[[0, 1, 3]].sum() if entropy_gradient else 0.0), logits)
    torch.testing.assert_close(gradient, wanted)

    hidden, weight = torch.randn(4, 5, dtype=torch.float64), torch.randn(70, 5, dtype=torch.float64)
    direct = token_logprobs_and_entropies(hidden @ weight.T, tokens, 0.7, allowed=words)
    in_chunks = head_logprobs_and_entropies(hidden, weight, None, tokens, 0.7, allowed=words)
    torch.testing.assert_close(in_chunks, direct)


def direct_logprobs(model: AutoModelForCausalLM, group: Group, temperature: float) -> list[torch.Tensor]:
    """Return log-probabilities per completion, of one completion at a time, over the allowed tokens."""
    found = []
    for completion in group.completions:
        ids = torch.tensor([[*group.prompt_ids, *completion.token_ids]])
        scores = model(ids).logits[0, len(group.prompt_ids) - 1 : -1] / temperature  # type: ignore[operator]
        if completion.json_schema:
            scores = scores.masked_fill(~bits(grammars().masks(SCHEMA, completion.token_ids)), -torch.inf)
        found.append(scores.log_softmax(-1).gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0])
    return found


def mixed_group(advantages: Sequence[float]) -> Group:
    """Return a group of constrained completions and one free completion."""
    completions = (*map(as_completion, VALUES), as_completion("free text", ""))
    return Group(0, sibling_calls((5, 6, 7), completions), tuple(advantages), tuple(advantages))


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_the_gradient_is_that_of_the_constrained_policy(layout: Layout) -> None:
    learner = tiny_learner(BASE_PATH, layout, max_grad_norm=None)
    model = AutoModelForCausalLM.from_pretrained(BASE_PATH, dtype=torch.float32)
    if layout == "padded":
        learner.logprob_model = replace(learner.logprob_model, layout=layout)
    group = mixed_group((1.0, -0.5, 0.25, -0.75))
    logprobs = direct_logprobs(model, group, 0.7)
    loss = -torch.stack([weight * own.sum() for weight, own in zip(group.weights, logprobs, strict=True)]).sum()
    loss.backward()
    learner.update(Batch(0, (MiniBatch((group,), 1),)))
    for (name, found), wanted in zip(learner.policy.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_importance_ratios_are_1_if_the_sampler_has_the_same_weights() -> None:
    model = AutoModelForCausalLM.from_pretrained(BASE_PATH, dtype=torch.float32)
    group = mixed_group((1.0, -0.5, 0.25, -0.75))
    with torch.no_grad():
        sampled = [tuple(own.tolist()) for own in direct_logprobs(model, group, 0.7)]
    completions = tuple(replace(c, logprobs=own) for c, own in zip(group.completions, sampled, strict=True))
    learner = tiny_learner(BASE_PATH)
    stats = learner.update(Batch(0, (MiniBatch((with_completions(group, completions),), 1),)))
    assert stats.importance_ratios is not None
    assert stats.importance_ratios.mean == pytest.approx(1.0, abs=1e-5)
    assert stats.importance_ratios.max == pytest.approx(1.0, abs=1e-4)
