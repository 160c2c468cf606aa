"""A served team with stop texts, system prompts and conversations, with real engines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from marl_ray.data.loading import load_tasks
from tests.factories import ROOT
from tests.plugins.serve.export.trained_run import make_run
from tests.plugins.serve.running_server import running_server

pytestmark = pytest.mark.slow
GREEDY = ["--override", "magrpo.eval_temperature=0"]
TASKS = load_tasks("bundled:toy", "eval[:3]", "toy")
STOP = "return"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings: dict[str, Any] = {"model.system_prompt": "Write Python.", "model.stop": [STOP]}
    settings |= {"magrpo.min_new_tokens": 4, "external.composition": "chat"}
    return make_run(tmp_path_factory.mktemp("runs") / "one", change=0.0, **settings).path


@pytest.fixture(scope="module")
def client(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with running_server(run, tmp_path_factory.mktemp("log") / "log", *GREEDY) as server:
        yield openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=600)


def ask_team(client: openai.OpenAI, task: Any, **more: Any) -> Any:
    team = {"entry_point": task.fields["entry_point"], "tests": task.fields["tests"], "parts": True}
    messages: Any = [{"role": "user", "content": task.prompt}]
    return client.chat.completions.create(model="team", messages=messages, extra_body={"marl_ray": team}, **more)


def test_a_conversation_has_the_bytes_of_an_evaluation(client: openai.OpenAI, run: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "marl_ray", "eval", "--model", str(run), "--split", "eval[:3]", "--episodes"]
    command += ["--output", str(tmp_path / "e"), *GREEDY]
    subprocess.run(command, check=True, capture_output=True, timeout=900, cwd=ROOT)
    episodes = [json.loads(line) for line in (tmp_path / "e" / "episodes.jsonl").read_text().splitlines()]
    for task, episode in zip(TASKS, episodes, strict=True):
        turns = ask_team(client, task).model_extra["marl_ray"]["turns"]
        assert len(turns) == 2
        for turn, node in zip(turns, episode["nodes"], strict=True):
            assert [agent["prompt"] for agent in turn["agents"]] == node["prompts"]
            assert [[agent["text"]] for agent in turn["agents"]] == node["responses"]


def test_streamed_parts_end_before_the_stop_text(client: openai.OpenAI) -> None:
    turns = ask_team(client, TASKS[0]).model_extra["marl_ray"]["turns"]
    parts: dict[tuple[int, str], str] = {}
    for chunk in ask_team(client, TASKS[0], stream=True):
        event = (chunk.model_extra or {}).get("marl_ray", {})
        if event.get("event") == "delta":
            key = (event["turn"], event["agent"])
            parts[key] = parts.get(key, "") + event["text"]
    texts = {(turn["turn"], agent["agent"]): agent["text"] for turn in turns for agent in turn["agents"]}
    assert parts == {key: text for key, text in texts.items() if text}
    assert any(agent["finish_reason"] == "stop" for turn in turns for agent in turn["agents"])
    assert not any(STOP in text for text in texts.values())


def test_an_agent_alone_has_its_system_prompt(client: openai.OpenAI) -> None:
    prompt = ask_team(client, TASKS[0]).model_extra["marl_ray"]["turns"][0]["agents"][1]
    messages: Any = [{"role": "user", "content": prompt["prompt"]}]
    alone = client.chat.completions.create(model="agent_1", messages=messages)
    assert alone.choices[0].message.content == prompt["text"]
    system: Any = [{"role": "system", "content": "Write Python."}, *messages]
    assert client.chat.completions.create(model="agent_1", messages=system).usage == alone.usage
    other: Any = [{"role": "system", "content": ""}, *messages]
    assert client.chat.completions.create(model="agent_1", messages=other).usage != alone.usage
