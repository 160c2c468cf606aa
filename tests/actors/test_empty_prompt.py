"""A prompt without tokens is a user's mistake and no failure of the engine."""

from __future__ import annotations

import pytest

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.config import ModelConfig
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.toy import BASE_PATH
from tests.actors.helpers import MODEL, SAMPLING, SPEC


def test_an_empty_prompt_names_its_agent() -> None:
    actor = GenerationActor(ActorId("generator", PolicyId((1,)), 0), SPEC, MODEL)
    actor.tokenizer = load_tokenizer(str(BASE_PATH), ModelConfig(max_length=1024))
    assert actor._encode("a", SAMPLING, (), template=False)
    with pytest.raises(UserError, match="a prompt for agent 1 is empty"):
        actor._encode("", SAMPLING, (), template=False)
