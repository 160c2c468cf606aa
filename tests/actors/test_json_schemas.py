"""A real vLLM engine samples JSON of a schema, and a real learner computes the same probabilities."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.core.episode import AgentCall
from marl_ray.models.json_schemas import schema_text
from tests.actors.helpers import PROMPTS, SAMPLING, MemoryHistory, as_batch, generators, learner, run, update_weights

pytestmark = pytest.mark.slow

DAY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "day": {"type": "integer", "minimum": 1, "maximum": 7},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["day", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine(local_ray: None) -> Iterator[GeneratorGroup]:
    group = generators()
    run(group.start())
    yield group
    run(group.close())


@pytest.fixture(scope="module")
def trainer(engine: GeneratorGroup) -> Iterator[LearnerGroup]:
    group = learner()
    run(group.start())
    run(group.connect(engine, MemoryHistory()))
    run(update_weights(group))
    yield group
    run(group.close())


def without_schema(call: AgentCall) -> AgentCall:
    return replace(call, completion=replace(call.completion, json_schema=""))


@pytest.mark.parametrize("schema", [{"enum": ["left", "right"]}, DAY])
def test_constrained_completions_are_json_and_have_ratios_of_1(
    engine: GeneratorGroup, trainer: LearnerGroup, schema: dict[str, Any]
) -> None:
    sampling = replace(SAMPLING, json_schema=schema_text(schema), max_new_tokens=64)
    groups = [run(engine.generate(prompt, sampling)) for prompt in PROMPTS]
    finished = [json.loads(c.text) for g in groups for c in g.completions if c.finish_reason == "stop"]
    assert len(finished) > len(groups)
    for value in finished:
        assert value in schema["enum"] if "enum" in schema else value.keys() == {"day", "tags"}
    batch = as_batch(groups).mini_batches[0].groups
    assert run(trainer.logprob_gap(batch)) < 1e-4
    free = [replace(group, calls=tuple(map(without_schema, group.calls))) for group in batch]
    assert run(trainer.logprob_gap(free)) > 0.5, "the engine divides by the probability of all allowed tokens"
