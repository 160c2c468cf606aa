"""Episodes of programs, in which agents answer several calls: pages and texts show all calls with their prompts."""

from __future__ import annotations

import asyncio

from marl_ray.core.episode import Episode
from marl_ray.plugins.report.episode_view import SelectedEpisode, episode_view
from marl_ray.results.run_summary import episode_text
from marl_ray.telemetry.metrics import episode_record
from marl_ray.toy import BASE_PATH
from tests.plugins.gateway.scripted_agents import ScriptedAgent, gateway_config, play


def played() -> Episode:
    config = gateway_config(function="tests.plugins.gateway.test_exact_ids:converses")
    agents = [ScriptedAgent(str(BASE_PATH), lambda text, seed: f"answer {len(text)}") for _ in range(2)]
    (episode,) = asyncio.run(play(config, agents))
    return episode


def test_the_page_shows_every_call_with_its_prompt() -> None:
    record = {**episode_record(played()), "kind": "train", "step": 1}
    (node,) = episode_view(SelectedEpisode([], 1.0, record))["nodes"]
    coder, tester = node["agents"]
    assert [call["prompt"].count("[user]") for call in coder["earlier_calls"]] == [1, 2]
    assert coder["prompt"].count("[user]") == 3
    assert len(coder["other_responses"]) == 3  # of the sibling
    assert (tester["earlier_calls"], len(tester["other_responses"])) == ([], 1)
    assert coder["response"] in tester["prompt"]


def test_the_text_shows_every_call_of_an_episode() -> None:
    text = episode_text(played())
    assert text.count("[agent 0 prompt]") == text.count("[agent 0 response]") == 3
    assert text.count("[agent 1 prompt]") == 1
