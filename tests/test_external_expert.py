"""`expert_edits` against a real local HTTP server that speaks both protocols."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from marl_ray.external import check_expert_key, expert
from marl_ray.external.expert import Expert, ExpertError, ExpertRefused, endpoint_of, parse_edits

KEY = "sk-very-secret"
NAMES = ["aux", "grow"]
EDITS = {"aux": "return n + 5", "grow": "multiply by 7"}


class Server:
    """Answers POSTs by a script: each item is a function of the handler, the last one repeats."""

    def __init__(self) -> None:
        self.script: list[Callable[[BaseHTTPRequestHandler], None]] = []
        self.requests: list[SimpleNamespace] = []
        self.lock = threading.Lock()
        self.active = self.most_active = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with outer.lock:
                    outer.requests.append(SimpleNamespace(path=self.path, headers=self.headers, body=body))
                    answer = outer.script.pop(0) if len(outer.script) > 1 else outer.script[0]
                    outer.active += 1
                    outer.most_active = max(outer.most_active, outer.active)
                try:
                    answer(self)
                except OSError:
                    pass
                finally:
                    with outer.lock:
                        outer.active -= 1

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def send(handler: BaseHTTPRequestHandler, status: int, data: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("content-length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def says(text: str, pause: float = 0.0) -> Callable[[BaseHTTPRequestHandler], None]:
    """A reply with this text, in the protocol of the path that was asked."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(pause)
        body: dict[str, Any]
        if handler.path.endswith("/messages"):
            body = {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text}]}
        else:
            body = {"choices": [{"message": {"role": "assistant", "content": text}}]}
        send(handler, 200, json.dumps(body).encode())

    return answer


def fails(status: int, body: bytes = b'{"error": "no, sk-very-secret"}', **headers: str) -> Callable[..., None]:
    return lambda handler: send(handler, status, body, **headers)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    running = Server()
    monkeypatch.setenv("OPENAI_BASE_URL", f"{running.url}/v1/")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", running.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(expert, "FIRST_PAUSE_S", 0.01)
    yield running
    running.close()


def ask(model: str = "some-model", timeout_s: float = 5.0, retries: int = 3) -> dict[str, str]:
    return asyncio.run(Expert(model, timeout_s, retries).edits("Add 5.", "def aux(n): ...", NAMES))


def test_openai_protocol(server: Server) -> None:
    server.script = [says(json.dumps(EDITS))]
    assert ask() == EDITS
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body["model"] == "some-model"
    (message,) = request.body["messages"]
    assert "Add 5." in message["content"]
    assert "def aux(n): ..." in message["content"]
    assert "aux, grow" in message["content"]


@pytest.mark.parametrize("model", ["claude-x", "anthropic:claude-x"])
def test_anthropic_protocol(server: Server, model: str) -> None:
    server.script = [says("Here:\n```json\n" + json.dumps(EDITS) + "\n```")]
    assert ask(model) == EDITS
    (request,) = server.requests
    assert request.path == "/v1/messages"
    assert request.headers["x-api-key"] == KEY
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert request.body["model"] == "claude-x"
    assert request.body["max_tokens"] > 0


@pytest.mark.parametrize(
    "trouble",
    [
        fails(429),
        fails(500),
        fails(529),
        says("I would rather not."),
        fails(200, b"<html>"),
        fails(200, b'{"choices": []}'),
        fails(200, b'{"choices": [{"message": {"content": null}}]}'),
        fails(200, b"[" * 100_000),
        fails(200, b" " * 300_000),
        lambda handler: handler.connection.close(),
    ],
)
def test_trouble_that_passes_is_tried_again(server: Server, trouble: Callable[..., None]) -> None:
    server.script = [trouble, trouble, says(json.dumps(EDITS))]
    assert ask() == EDITS
    assert len(server.requests) == 3


def test_a_slow_reply_times_out_and_is_tried_again(server: Server) -> None:
    server.script = [says("late", pause=1.0), says(json.dumps(EDITS))]
    started = time.monotonic()
    assert ask(timeout_s=0.2) == EDITS
    assert time.monotonic() - started < 0.9


def test_a_dripping_reply_times_out(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(20):
            handler.wfile.write(b" ")
            time.sleep(0.05)

    server.script = [drip]
    started = time.monotonic()
    assert ask(timeout_s=0.2, retries=0) == {}
    assert time.monotonic() - started < 0.8
    assert "timed out" in caplog.text


@pytest.mark.parametrize("trouble", [fails(500), fails(429), says("no JSON")])
def test_after_the_retries_there_is_no_edit_and_no_key_in_the_log(
    server: Server, trouble: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    server.script = [trouble]
    with caplog.at_level(logging.DEBUG):
        assert ask(retries=2) == {}
    assert len(server.requests) == 3
    assert "gave no edit" in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize("status", [400, 404])
def test_what_another_try_cannot_help_is_not_tried_again(server: Server, status: int) -> None:
    server.script = [fails(status)]
    assert ask() == {}
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_ends_the_run_without_naming_it(server: Server, status: int) -> None:
    server.script = [fails(status)]
    with pytest.raises(ExpertRefused, match="refused the key in OPENAI_API_KEY") as error:
        ask()
    assert KEY not in str(error.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [302, 307])
def test_redirects_are_not_followed_with_the_key(server: Server, status: int) -> None:
    server.script = [fails(status, location=f"{server.url}/elsewhere")]
    assert ask() == {}
    assert [request.path for request in server.requests] == ["/v1/chat/completions"]


def test_no_server_and_no_address(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert ask(retries=1) == {}
    monkeypatch.setenv("OPENAI_BASE_URL", "file:///etc/passwd")
    assert ask(retries=1) == {}


def test_requests_in_flight_are_bounded_also_over_several_loops(server: Server) -> None:
    server.script = [says(json.dumps(EDITS), pause=0.05)]
    asked = Expert("some-model", 5.0, 0)

    async def many() -> list[dict[str, str]]:
        return await asyncio.gather(*(asked.edits("Add 5.", "", NAMES) for _ in range(20)))

    for _ in range(2):
        assert asyncio.run(many()) == [EDITS] * 20
    assert 1 < server.most_active <= expert.MAX_CONCURRENT


def test_parse_edits_is_tolerant() -> None:
    assert parse_edits('{"aux": null, "grow": " x "}', NAMES) == {"grow": "x"}
    assert parse_edits('For {this}: {"note": 1} {"aux": {"code": "y"}} end', NAMES) == {"aux": '{"code": "y"}'}
    assert parse_edits('{"aux": "\\ud800"}', NAMES) == {"aux": "?"}
    assert len(parse_edits(json.dumps({"aux": "x" * 9000}), NAMES)["aux"]) == expert.MAX_EDIT_CHARS
    for text in ("", "{", "[]", '{"other": 1}', "{" * 3000, '{"a":' * 3000):
        with pytest.raises(ExpertError):
            parse_edits(text, NAMES)


def test_which_models_are_whose() -> None:
    assert endpoint_of("claude-x") == (expert.ANTHROPIC, "claude-x")
    assert endpoint_of("openai:claude-clone") == (expert.OPENAI, "claude-clone")
    assert endpoint_of("vendor/model:8b") == (expert.OPENAI, "vendor/model:8b")


def test_a_missing_key_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def config(model: str | None, mode: str = "expert_edits") -> Any:
        return SimpleNamespace(mode=mode, expert_model=model)

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", " ")
    check_expert_key(config(None, "plain"))
    with pytest.raises(ValueError, match=r"needs external\.expert_model") as missing:
        check_expert_key(config(None))
    assert "\n" not in str(missing.value)
    with pytest.raises(ValueError, match=r"set the environment variable OPENAI_API_KEY$"):
        check_expert_key(config("some-model"))
    with pytest.raises(ValueError, match=r"set the environment variable ANTHROPIC_API_KEY$"):
        check_expert_key(config("claude-x"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    check_expert_key(config("some-model"))
