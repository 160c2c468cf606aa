"""Episodes of programs, in which agents answer several calls: pages and texts show all calls with their prompts."""

from __future__ import annotations

import asyncio

from marl_ray.core.episode import Episode
from marl_ray.results.run_summary import episode_text
from marl_ray.toy import BASE_PATH
from tests.plugins.gateway.scripted_agents import ScriptedAgent, gateway_config, play


def played() -> Episode:
    config = gateway_config(function="tests.plugins.gateway.test_exact_ids:converses")
    agents = [ScriptedAgent(str(BASE_PATH), lambda text, seed: f"answer {len(text)}") for _ in range(2)]
    (episode,) = asyncio.run(play(config, agents))
    return episode


def test_the_text_shows_every_call_of_an_episode() -> None:
    text = episode_text(played())
    assert text.count("[agent 0 prompt]") == text.count("[agent 0 response]") == 3
    assert text.count("[agent 1 prompt]") == 1
