"""The API's formats over HTTP, with the clients of OpenAI and MCP, canned answers and a real sandbox."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from marl_ray.core.episode import Task
from marl_ray.environments.code_generation import CodeGeneration
from tests.plugins.serve.canned_team import AUX, CannedStreams, canned_team
from tests.plugins.serve.hostile_requests import MARK, REFUSED, REQUESTS, reply_to

TASK = 'def double(n: int) -> int:\n    """Return 2 times n."""\n'
TESTS = ["assert double(2) == 4", "assert double(0) == 1"]
MESSAGES: Any = [{"role": "user", "content": TASK}]
MAIN = "def double(n):\n    return aux(n)\n"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, CannedStreams, Any]]:
    with canned_team(body_bytes=100_000, answer_s=100.0) as server:
        yield server


@pytest.fixture
def address(served: tuple[str, CannedStreams, Any]) -> str:
    return served[0]


@pytest.fixture
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=100)


def ask_team(client: openai.OpenAI, **more: Any) -> Any:
    team = {"tests": TESTS, "parts": True}
    return client.chat.completions.create(model="team", messages=MESSAGES, extra_body={"marl_ray": team}, **more)


def test_the_team_plays_its_turns_with_the_sandbox(client: openai.OpenAI) -> None:
    reply = ask_team(client)
    first, second = reply.model_extra["marl_ray"]["turns"]
    assert [agent["text"] for agent in first["agents"]] == [AUX, MAIN]
    assert [test["status"] for test in first["report"]["tests"]] == ["pass", "fail"]
    assert "1 of 2" in second["agents"][0]["prompt"] or "Feedback:" in second["agents"][0]["prompt"]
    assert second["left_out"] == []
    program = reply.choices[0].message.content
    assert "def aux(n):" in program
    assert "def double(n):" in program
    assert reply.usage.completion_tokens == 2 * (len(AUX) + len(MAIN) + 6) // 4
    assert reply.model == "team"


def test_a_streamed_answer_has_the_events_of_all_turns(client: openai.OpenAI) -> None:
    texts: dict[tuple[int, str], str] = {}
    verdicts, program, usage = [], "", None
    for chunk in ask_team(client, stream=True, stream_options={"include_usage": True}):
        event = (chunk.model_extra or {}).get("marl_ray", {})
        if event.get("event") == "delta":
            key = event["turn"], event["agent"]
            texts[key] = texts.get(key, "") + event["text"]
        elif event.get("event") == "verdict":
            verdicts.append(event["turn"])
        elif event:
            assert event == {"event": "answer", "left_out": []}
        program += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert texts == {(turn, f"agent_{agent}"): text for turn in (1, 2) for agent, text in enumerate((AUX, MAIN))}
    assert verdicts == [1, 2]
    assert program == ask_team(client).choices[0].message.content
    assert usage is not None


def test_an_agent_whose_text_is_no_part_of_the_answer_is_named(client: openai.OpenAI) -> None:
    # One token of an answer is no function.
    for max_tokens, left_out in ((1, ["agent_0", "agent_1"]), (64, [])):
        last = ask_team(client, max_tokens=max_tokens).model_extra["marl_ray"]["turns"][-1]
        assert last["left_out"] == left_out


def test_a_client_without_the_extension_streams_the_program_alone(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="team", messages=MESSAGES, stream=True))
    assert all(chunk.choices for chunk in chunks)
    assert "def double(n):" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_agents_and_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["team", "agent_0", "agent_1"]
    assert client.models.retrieve("agent_1").model_extra == {"role": "main"}
    chat = client.chat.completions.create(model="agent_0", messages=MESSAGES, n=2)
    assert [choice.message.content for choice in chat.choices] == [AUX, AUX]
    text = client.completions.create(model="agent_0", prompt=["a", "b"], max_tokens=3)
    assert [(choice.index, choice.text, choice.finish_reason) for choice in text.choices] == [
        (0, AUX[:12], "length"),
        (1, AUX[:12], "length"),
    ]
    cut = client.completions.create(model="agent_0", prompt="a", stop=["return"])
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == ("def aux(n):\n    ", "stop")
    streamed = client.completions.create(model="agent_0", prompt="a", stop="return", stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "def aux(n):\n    "


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "content", "status", "code"),
    [
        ("no", "x", 404, "model_not_found"),
        ("agent_0", "x" * 5000, 400, "context_length_exceeded"),
        ("team", "x" * 5000, 400, "context_length_exceeded"),
        ("agent_0", "lost", 503, "unavailable"),
        ("team", "lost", 503, "unavailable"),
        ("team", "x" * 200_000, 413, "too_large"),
    ],
)
def test_errors_have_the_format_of_the_api(
    client: openai.OpenAI, stream: bool, model: str, content: str, status: int, code: str
) -> None:
    messages: Any = [{"role": "user", "content": content}]
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model=model, messages=messages, stream=stream)
    assert (caught.value.status_code, caught.value.code) == (status, code)


class Lengths(CodeGeneration):
    """An environment whose evaluation reads a field of the task, and whose prompts do not."""

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Any:
        assert task.fields["length"] > 0
        return super().attempt(task, responses, last)


def test_a_task_without_a_field_that_the_environment_reads_is_refused() -> None:
    question: dict[str, Any] = {"model": "team", "messages": MESSAGES}
    with canned_team(settings={"environment": f"{__name__}:Lengths"}) as (address, _, _):
        refused = httpx.post(f"{address}/v1/chat/completions", json=question)
        question["marl_ray"] = {"fields": {"length": 4}}
        answered = httpx.post(f"{address}/v1/chat/completions", json=question, timeout=60.0)
    assert refused.status_code == 400
    assert "needs further fields of the task (KeyError: 'length')" in refused.json()["error"]["message"]
    assert answered.status_code == 200


def test_a_closed_connection_stops_the_agents(served: tuple[str, CannedStreams, Any], client: openai.OpenAI) -> None:
    address, streams, _ = served
    messages: Any = [{"role": "user", "content": "hang"}]
    for stream in (True, False):
        streams.hanging.clear()
        streams.aborted.clear()
        if stream:
            reply = client.chat.completions.create(model="agent_0", messages=messages, stream=True)
            next(iter(reply))
            assert streams.hanging.wait(60)
            reply.close()
        else:
            body = {"model": "agent_0", "messages": messages}
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{address}/v1/chat/completions", json=body, timeout=httpx.Timeout(60, read=1))
        assert streams.aborted.wait(60)
    assert httpx.get(f"{address}/health", timeout=60).status_code == 200


def test_an_answer_has_a_time_limit() -> None:
    with canned_team(answer_s=0.2) as (address, streams, _):
        body = {"model": "team", "messages": [{"role": "user", "content": "hang"}]}
        reply = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60)
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "timeout")
        assert streams.aborted.wait(60)


@pytest.mark.slow
def test_hostile_requests_are_refused_or_harmless(address: str) -> None:
    assert len(REQUESTS) == 50
    replies = {name: reply_to(address, request) for name, request in REQUESTS.items()}
    statuses = {}
    for name, reply in replies.items():
        match = re.match(rb"HTTP/1\.1 (\d+)", reply)
        statuses[name] = int(match[1]) if match else 400  # closed without a reply
    assert {name: status for name, status in statuses.items() if name in REFUSED and not 400 <= status < 500} == {}
    assert {name: status for name, status in statuses.items() if not (status == 200 or 400 <= status < 500)} == {}
    assert {name for name in REFUSED if b"HTTP/1.1 200" in replies[name]} == set(), "no smuggled request"
    assert {name for name, reply in replies.items() if b"root:x:" in reply} == set()
    assert not Path(MARK).exists()


def test_an_mcp_client_asks_the_team(address: str, client: openai.OpenAI) -> None:
    pytest.importorskip("mcp")
    from mcp import Client

    async def ask() -> Any:
        async with Client(f"{address}/mcp") as session:
            tools = await session.list_tools()
            answer = await session.call_tool("ask_team", {"task": TASK, "tests": TESTS})
            bad = await session.call_tool("ask_team", {"task": TASK, "tests": ["assert ("]})
            return [tool.name for tool in tools.tools], answer, bad

    names, answer, bad = asyncio.run(ask())
    assert names == ["ask_team"]
    content = answer.structured_content or json.loads(answer.content[0].text)
    assert content["program"] == ask_team(client).choices[0].message.content
    assert bad.is_error


def test_a_key_protects_the_api_and_mcp() -> None:
    with canned_team(key="k" * 20) as (address, _, _):
        for path in ("/v1/models", "/mcp"):
            assert httpx.get(address + path, timeout=60).status_code == 401
        good = openai.OpenAI(base_url=f"{address}/v1", api_key="k" * 20, max_retries=0)
        assert len(list(good.models.list())) == 3
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0).models.list()
        assert "script-src" in httpx.get(address, timeout=60).headers["content-security-policy"]
