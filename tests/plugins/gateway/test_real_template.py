"""The chat template of a real model in the gateway."""

from __future__ import annotations

import pytest

from marl_ray.models import names
from marl_ray.plugins.gateway.prompt_renderer import PromptRenderer, SampledConversations
from tests.plugins.gateway.scripted_agents import gateway_config


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.real_model
def test_a_gateway_renders_messages_with_its_template() -> None:
    config = gateway_config(names.SMOLLM2)
    messages = [{"role": "user", "content": "Name a fruit."}]
    prompt = PromptRenderer(config.agents[0], config.model).chat(messages, [], SampledConversations())
    assert "<|im_start|>user\nName a fruit.<|im_end|>" in prompt.text
