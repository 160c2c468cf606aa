"""Episodes of programs, in which agents answer several calls: pages and texts show all calls with their prompts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from marl_ray.core.episode import Episode
from marl_ray.plugins.report.episode_data import episode_data
from marl_ray.results.run_summary import episode_text
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.episode_records import episode_record
from marl_ray.toy import BASE_PATH
from tests.plugins.gateway.scripted_agents import ScriptedAgent, gateway_config, play


def played() -> Episode:
    config = gateway_config(function="tests.plugins.gateway.test_exact_ids:converses")
    agents = [ScriptedAgent(str(BASE_PATH), lambda text, seed: f"answer {len(text)}") for _ in range(2)]
    (episode,) = asyncio.run(play(config, agents))
    return episode


def test_the_page_has_every_call_with_its_prompt(tmp_path: Path) -> None:
    record = {"step": 1, "kind": "train", **episode_record(played())}
    run = RunFolder(tmp_path)
    run.episodes.write_text(json.dumps(record) + "\n", encoding="utf-8")
    data = episode_data(run, 10**6)
    (node,) = data["episodes"][0]["nodes"]
    prompts = [[data["texts"][place] for place in of_agent] for of_agent in node["own_prompts"]]
    calls_of_first = [number for number, caller in enumerate(node["callers"][0]) if caller == 0]
    assert [prompts[0][number].count("[user]") for number in calls_of_first] == [1, 2, 3]
    assert len(node["responses"][0]) == 6, "three calls of each run"
    answer = node["responses"][0][calls_of_first[-1]]
    assert data["texts"][answer] in prompts[1][0]
    assert len(data["episodes"][0]["roles"]) == 2


def test_the_text_shows_every_call_of_an_episode() -> None:
    lines = [line for line in episode_text(played()).splitlines() if line.startswith("[agent")]
    assert [line[:8] for line in lines if line.endswith("prompt]")] == ["[agent 0"] * 3 + ["[agent 1"]
    assert [line[:8] for line in lines if line.endswith("response]")] == ["[agent 0"] * 3 + ["[agent 1"]
