"""Parsing of requests and streamed parts of a text, without engines."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from marl_ray.actors.text_streams import TextStream
from marl_ray.cli.main import main
from marl_ray.core.connections import bind
from marl_ray.core.episode import Task
from marl_ray.http.request_formats import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    TeamFields,
    parse_request,
)
from marl_ray.plugins.serve.app import page
from marl_ray.plugins.serve.team_tasks import read_tasks, task_text

CHAT: dict[str, Any] = {"model": "team", "messages": [{"role": "user", "content": "hello"}]}


def read_task(prompt: str, given: TeamFields) -> Task:
    (task,) = asyncio.run(read_tasks([prompt], given))
    return task


def chat(**changes: Any) -> bytes:
    return json.dumps(CHAT | changes).encode()


def test_a_request_is_parsed() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = parse_request(ChatRequest, chat(messages=[{"role": "user", "content": content}], temperature=0, stop="x"))
    assert (asked.messages[0].text, asked.temperature, asked.stops) == ("ab", 0, ["x"])
    assert parse_request(CompletionRequest, b'{"model": "m", "prompt": ["a", "b"]}').prompt == ["a", "b"]
    assert parse_request(ChatRequest, chat(logprobs=False, tools=[], frequency_penalty=0)).model == "team"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"[]", None),
        (b'{"model": "team"}', "messages"),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
        (b'{"model": "\\ud800", "messages": []}', None),
        (chat(messages=[]), "messages"),
        (chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]), "messages"),
        (chat(messages=[{"role": "tool", "content": "x"}]), "messages"),
        (chat(temperature=3), "temperature"),
        (chat(temperature="hot"), "temperature"),
        (chat(max_tokens=0), "max_tokens"),
        (chat(max_tokens=True), "max_tokens"),
        (chat(seed=2**70), "seed"),
        (chat(n=1000), "n"),
        (chat(stop=["x"] * 100), "stop"),
        (chat(tools=[{"type": "function"}]), "tools"),
        (chat(response_format={"type": "json_object"}), "response_format"),
        (chat(marl_ray={"entry_point": "os.system"}), "marl_ray.entry_point"),
        (chat(marl_ray={"entry_point": "f\n"}), "marl_ray.entry_point"),
        (chat(marl_ray={"unknown": 1}), "marl_ray.unknown"),
    ],
)
def test_a_malformed_request_is_rejected_with_its_place(body: bytes, param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request(ChatRequest, body)
    assert caught.value.status == 400
    assert (caught.value.param or "").startswith(param or "")
    assert len(json.dumps(caught.value.body())) < 1000


def test_a_task_is_made_from_a_prompt() -> None:
    prompt = 'def helper(x):\n    pass\n\ndef double(n: int) -> int:\n    """Return twice n."""\n'
    task = read_task(prompt, TeamFields(tests=["assert double(1) == 2"], fields={"buggy": "x"}))
    assert task.fields == {"buggy": "x", "entry_point": "double", "tests": ("assert double(1) == 2",)}
    assert read_task("Add two numbers.", TeamFields()).fields == {"entry_point": "solution", "tests": ()}
    script = read_task("Print it.", TeamFields.model_validate({"tests": [{"stdin": "1", "stdout": "2"}]}))
    assert script.fields["script"] is True


@pytest.mark.parametrize("tests", [["assert ("], ["x = 1"], "assert " + "(" * 50_000, ["assert f(1) == 1"] * 9000])
def test_tests_that_cannot_be_parsed_are_rejected(tests: Any) -> None:
    with pytest.raises(ApiError) as caught:
        read_task("t", TeamFields(entry_point="f", tests=tests))
    assert (caught.value.status, caught.value.param) == (400, "marl_ray.tests")


def test_the_task_in_a_message_of_evalplus_is_its_code() -> None:
    first = "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
    assert task_text(f"{first}\n```python\ndef f():\n    pass\n```") == "def f():\n    pass\n"
    other = "Mend this function:\n```python\ndef f():\n    pass\n```"
    assert task_text(other) == other


def test_a_stream_withholds_incomplete_characters() -> None:
    parts: list[str] = []
    stream = TextStream(parts.append)
    for text in ("a", "a\ufffd", "a\ufffd\ufffd", "aé", "aéb"):
        stream.update(text)
    stream.update("aéb", complete=True)
    assert parts == ["a", "é", "b"]


def test_replies_are_not_delayed_by_the_algorithm_of_nagle() -> None:
    async def answered_without_delay() -> bool:
        accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with bind("127.0.0.1", 0) as listening:
            async with await asyncio.start_server(on_client, sock=listening):
                _, writer = await asyncio.open_connection(*listening.getsockname())
                writer.close()
                return bool(await accepted)

    assert asyncio.run(answered_without_delay())


def test_the_page_runs_only_its_own_script() -> None:
    text, policy = page()
    assert "default-src 'none'" in policy
    assert policy.count("sha256-") == 2
    assert not any(word in text for word in ("http://", "https://", "onclick=", "innerHTML", "eval("))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "is reachable from other machines: give --api-key-file FILE"),
        (["--api-key-file", "short"], "should have one key of at least 16 ASCII characters"),
        (["--api-key-file", "missing"], "the API key cannot be read"),
    ],
)
def test_keys_are_checked_before_anything_starts(
    arguments: list[str],
    message: str,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("secret")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(
        "model: {name: bundled:toy-base}\ndataset: {name: 'bundled:toy'}\nmagrpo: {}\n"
    )
    assert main(["serve", "run", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "secret" not in error
