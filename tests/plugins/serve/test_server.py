"""A real server of two toy agents: clients of the API and of MCP, plain HTTP, hostile requests, aborts and stops."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import psutil
import pytest

from marl_ray.data.loading import load_tasks
from tests.factories import ROOT
from tests.plugins.serve.export.trained_run import make_run
from tests.plugins.serve.hostile_requests import MARK, REFUSED, REQUESTS, reply_to
from tests.plugins.serve.running_server import RunningServer, running_server

pytestmark = pytest.mark.slow
GREEDY = ["--override", "magrpo.eval_temperature=0"]
TASKS = load_tasks("bundled:toy", "eval[:4]", "toy")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "one", change=0.0).path


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(run, tmp_path_factory.mktemp("log") / "log", *GREEDY, "--max-requests", "64") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=600)


def ask_team(client: openai.OpenAI, task: Any, **more: Any) -> Any:
    tests = task.fields["tests"]
    team = {"entry_point": task.fields["entry_point"], "tests": tests, "parts": True}
    messages: Any = [{"role": "user", "content": task.prompt}]
    return client.chat.completions.create(model="team", messages=messages, extra_body={"marl_ray": team}, **more)


def test_idle_connections_leave_descriptors_for_the_actors(server: RunningServer, client: openai.OpenAI) -> None:
    process = psutil.Process(server.process.pid)
    before, where = process.num_fds(), urlsplit(server.address)
    idle = [socket.create_connection((where.hostname, where.port), timeout=60) for _ in range(1200)]
    assert client.completions.create(model="agent_0", prompt="x", max_tokens=2).choices
    assert process.num_fds() < before + 550
    for connection in idle:
        connection.close()


def test_the_team_answers_with_the_bytes_of_an_evaluation(client: openai.OpenAI, run: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda task: ask_team(client, task), TASKS))
    command = [sys.executable, "-m", "marl_ray", "eval", "--model", str(run), "--split", "eval[:4]", "--episodes"]
    command += ["--output", str(tmp_path / "e"), *GREEDY]
    subprocess.run(command, check=True, capture_output=True, timeout=900, cwd=ROOT)
    episodes = [json.loads(line) for line in (tmp_path / "e" / "episodes.jsonl").read_text().splitlines()]
    for reply, episode in zip(replies, episodes, strict=True):
        turns = reply.model_extra["marl_ray"]["turns"]
        for turn, node in zip(turns, episode["nodes"], strict=True):
            assert [agent["prompt"] for agent in turn["agents"]] == node["prompts"]
            assert [[agent["text"]] for agent in turn["agents"]] == node["responses"]
            assert turn["reward"] == node["joint_actions"][0]["reward"]
        assert reply.choices[0].finish_reason in ("stop", "length")
        assert reply.usage.completion_tokens == sum(a["completion_tokens"] for t in turns for a in t["agents"])


def test_a_streamed_answer_has_the_parts_of_the_whole_answer(client: openai.OpenAI) -> None:
    whole = ask_team(client, TASKS[0])
    parts: dict[tuple[int, str], str] = {}
    text, finish, usage, verdicts = "", None, None, 0
    for chunk in ask_team(client, TASKS[0], stream=True, stream_options={"include_usage": True}):
        event = (chunk.model_extra or {}).get("marl_ray", {})
        if event.get("event") == "delta":
            key = (event["turn"], event["agent"])
            parts[key] = parts.get(key, "") + event["text"]
        verdicts += event.get("event") == "verdict"
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
        usage = chunk.usage or usage
    turns = whole.model_extra["marl_ray"]["turns"]
    assert parts == {(turn["turn"], agent["agent"]): agent["text"] for turn in turns for agent in turn["agents"]}
    assert (text, finish, usage) == (whole.choices[0].message.content, whole.choices[0].finish_reason, whole.usage)
    assert verdicts == len(turns)


def test_agents_answer_alone(client: openai.OpenAI) -> None:
    models = [model.id for model in client.models.list()]
    assert models == ["team", "agent_0", "agent_1"]
    prompt = ask_team(client, TASKS[0]).model_extra["marl_ray"]["turns"][0]["agents"][1]
    messages: Any = [{"role": "user", "content": prompt["prompt"]}]
    chat = client.chat.completions.create(model="agent_1", messages=messages)
    text = client.completions.create(model="agent_1", prompt=[prompt["prompt"]] * 2, n=2)
    assert chat.choices[0].message.content == prompt["text"]
    assert [choice.text for choice in text.choices] == [prompt["text"]] * 4
    stop = prompt["text"][len(prompt["text"]) // 2 :][:3]
    cut = client.completions.create(model="agent_1", prompt=prompt["prompt"], stop=stop)
    assert cut.choices[0].text == prompt["text"].partition(stop)[0]
    chunks = client.completions.create(model="agent_1", prompt=prompt["prompt"], stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == prompt["text"].partition(stop)[0]


def test_seeds_repeat_an_answer(client: openai.OpenAI) -> None:
    def text(**more: Any) -> str:
        prompt = "def f(n):"
        return (
            client.completions.create(model="agent_0", prompt=prompt, temperature=1.5, max_tokens=40, **more)
            .choices[0]
            .text
        )

    assert text(seed=1) == text(seed=1)
    assert len({text() for _ in range(4)}) > 1


def test_a_task_without_tests_is_answered_in_one_turn(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": TASKS[0].prompt}]
    reply = client.chat.completions.create(
        model="team", messages=messages, extra_body={"marl_ray": {"parts": True}}, max_tokens=48
    )
    (turn,) = (reply.model_extra or {})["marl_ray"]["turns"]
    assert "reward" not in turn
    assert f"def {TASKS[0].fields['entry_point']}" in (reply.choices[0].message.content or "")
    like_lm_eval: Any = {"max_tokens": 48, "temperature": 0.0, "stop": [], "seed": 1234}
    text = client.completions.create(model="team", prompt=TASKS[0].prompt, **like_lm_eval)
    assert text.choices[0].text == reply.choices[0].message.content


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"model": "no", "messages": [{"role": "user", "content": "x"}]}, 404, "model_not_found"),
        ({"model": "team", "messages": []}, 400, "invalid_value"),
        ({"model": "agent_0", "messages": [{"role": "user", "content": "x " * 3000}]}, 400, "context_length_exceeded"),
        ({"model": "agent_0", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9999}, 400, None),
        ({"model": "team", "messages": [{"role": "user", "content": "x"}], "n": 2}, 400, "unsupported_parameter"),
        ({"model": "team", "messages": [{"role": "user", "content": "x " * 600_000}]}, 413, "too_large"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_mistakes_have_the_right_status(
    server: RunningServer, body: dict[str, Any], status: int, code: str | None, stream: bool
) -> None:
    reply = httpx.post(f"{server.address}/v1/chat/completions", json=body | {"stream": stream}, timeout=300)
    assert reply.status_code == status
    assert code is None or reply.json()["error"]["code"] == code


def test_hostile_requests_are_refused_or_harmless(server: RunningServer) -> None:
    assert len(REQUESTS) == 50
    with ThreadPoolExecutor(8) as pool:
        replies = dict(zip(REQUESTS, pool.map(lambda r: reply_to(server.address, r), REQUESTS.values()), strict=True))
    statuses = {name: int(re.match(rb"HTTP/1\.1 (\d+)", reply)[1]) for name, reply in replies.items()}  # type: ignore[index]
    assert {name: s for name, s in statuses.items() if name in REFUSED and not 400 <= s < 500} == {}
    assert {name: s for name, s in statuses.items() if not (s == 200 or 400 <= s < 500)} == {}
    assert {name for name in REFUSED if b"HTTP/1.1 200" in replies[name]} == set(), "no smuggled request"
    assert {name for name, reply in replies.items() if b"root:x:" in reply} == set()
    assert not Path(MARK).exists()
    passed = {n for n, r in replies.items() if n.startswith("test") and b'"status":"pass"' in r.replace(b" ", b"")}
    assert {name for name in passed if "environ" not in name} == set()
    assert httpx.get(f"{server.address}/health", timeout=60).json() == {"status": "ok"}


def test_aborted_requests_leave_the_server_free(server: RunningServer, client: openai.OpenAI) -> None:
    for _ in range(3):
        with client.chat.completions.create(
            model="team", messages=[{"role": "user", "content": TASKS[0].prompt}], stream=True
        ) as stream:
            next(iter(stream))
        where = urlsplit(server.address)
        request = next(request for name, request in REQUESTS.items() if name.startswith("prompt"))
        with socket.create_connection((where.hostname, where.port), timeout=60) as connection:
            connection.sendall(request)
    with ThreadPoolExecutor(48) as pool:
        statuses = list(pool.map(lambda _: ask_status(server), range(48)))
    assert statuses == [200] * 48


def ask_status(server: RunningServer) -> int:
    body = {"model": "agent_0", "prompt": "def f(n):", "max_tokens": 16}
    return httpx.post(f"{server.address}/v1/completions", json=body, timeout=600).status_code


def test_many_requests_at_a_time_are_answered_or_turned_away(server: RunningServer) -> None:
    with ThreadPoolExecutor(200) as pool:
        statuses = list(pool.map(lambda _: ask_status(server), range(400)))
    assert set(statuses) <= {200, 429}
    assert statuses.count(200) >= 64


def test_an_mcp_client_asks_the_team(server: RunningServer, client: openai.OpenAI) -> None:
    pytest.importorskip("mcp")
    from mcp import Client

    task = TASKS[0]

    async def ask() -> Any:
        async with Client(f"{server.address}/mcp") as session:
            tools = await session.list_tools()
            arguments = {"task": task.prompt, "entry_point": task.fields["entry_point"], "tests": task.fields["tests"]}
            bad = await session.call_tool("ask_team", arguments | {"tests": ["assert ("]})
            return [tool.name for tool in tools.tools], await session.call_tool("ask_team", arguments), bad

    names, result, bad = asyncio.run(ask())
    assert names == ["ask_team"]
    content = result.structured_content or json.loads(result.content[0].text)
    assert content["program"] == ask_team(client, task).choices[0].message.content
    assert bad.is_error


def kill_children(server: RunningServer, name: str) -> None:
    found = [
        process
        for process in psutil.Process(server.process.pid).children(recursive=True)
        if name in "".join(process.cmdline()[:1])
    ]
    assert found
    for process in found:
        process.kill()


@pytest.mark.parametrize("loss", ["first", "second"])
def test_answers_survive_a_lost_engine(server: RunningServer, client: openai.OpenAI, loss: str) -> None:
    body: Any = {"model": "agent_0", "prompt": "def f(n):", "max_tokens": 500, "temperature": 2, "seed": 5}
    whole = client.completions.create(**body).choices[0].text
    texts = []
    for number, chunk in enumerate(client.completions.create(**body, stream=True)):
        texts.append(chunk.choices[0].text)
        if number == 1:
            kill_children(server, "GenerationActor")
    assert "".join(texts) == whole


@pytest.mark.nightly
def test_a_server_that_cannot_answer_again_ends_with_the_cause(run: Path, tmp_path: Path) -> None:
    for name, settings, cause in (
        ("GenerationActor", ["resources.generator.max_restarts=0"], r"error: agent \d generator 0 is lost for good"),
        ("raylet", ["magrpo.eval_temperature=0"], r"error: Ray's process on node .* \(raylet\) is gone"),
    ):
        with running_server(run, tmp_path / name, "--override", *settings) as server:
            kill_children(server, name)
            assert server.process.wait(timeout=120) == 1
            assert re.search(cause, server.log.read_text())


def test_a_stop_finishes_answers_in_progress(run: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 32)
    key.chmod(0o600)
    with running_server(run, tmp_path / "log", "--api-key-file", str(key)) as server:
        assert httpx.get(f"{server.address}/v1/models", timeout=60).status_code == 401
        client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="k" * 32, max_retries=0, timeout=600)
        begun, texts = threading.Event(), []

        def ask() -> None:
            for chunk in client.completions.create(
                model="agent_0", prompt="def f(n):", max_tokens=400, temperature=2, stream=True
            ):
                texts.append(chunk.choices[0])
                begun.set()

        asking = threading.Thread(target=ask)
        asking.start()
        assert begun.wait(300)
        code = server.stop()
        asking.join(300)
        assert code == 143
        assert texts[-1].finish_reason in ("stop", "length")
        log = server.log.read_text()
        assert "Traceback" not in log
        assert "k" * 32 not in log
