"""The external mode `expert_edits` with the vendors' clients and a local HTTP server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from marl_ray.config import ExternalConfig
from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.external import client, modes
from marl_ray.external.client import EndpointError
from marl_ray.external.endpoints import endpoint_of
from marl_ray.external.modes import Expert, parse_edits
from marl_ray.external.transition import Observations, Transition
from marl_ray.sandbox import ExecutionReport
from tests.external.fake_endpoint import Server, fails, says

KEY = "sk-very-secret"
NAMES = ["aux", "grow"]
EDITS = {"aux": "return n + 5", "grow": "multiply by 7"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    running = Server()
    monkeypatch.setenv("OPENAI_BASE_URL", f"{running.url}/v1/")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", running.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.01)
    yield running
    running.close()


def settings(model: str | None = "some-model", base_url: str | None = None) -> ExternalConfig:
    return ExternalConfig(
        mode="expert_edits", expert_model=model, expert_base_url=base_url, expert_retries=0, previous_response=False
    )


def ask(
    model: str = "some-model", timeout_s: float = 5.0, retries: int = 3, names: list[str] = NAMES
) -> dict[str, str] | None:
    endpoint = endpoint_of(settings(model))
    return asyncio.run(Expert(endpoint, timeout_s, retries).edits(f"Add 5. Edit {', '.join(names)}.", names))


def test_openai_protocol(server: Server) -> None:
    server.script = [says(json.dumps(EDITS))]
    assert ask() == EDITS
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body["model"] == "some-model"
    (message,) = request.body["messages"]
    assert message["content"] == "Add 5. Edit aux, grow."


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
@pytest.mark.parametrize("model", ["some-model", "claude-x"])
def test_a_model_on_localhost_is_not_asked_through_a_proxy(
    server: Server, monkeypatch: pytest.MonkeyPatch, model: str, variable: str
) -> None:
    monkeypatch.setenv(variable, "socks5://127.0.0.1:1" if variable == "all_proxy" else "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("no_proxy", "example.org")
    server.script = [says(json.dumps(EDITS))]
    assert ask(model) == EDITS
    assert os.environ["NO_PROXY"] == "example.org,localhost,127.0.0.1,::1"


@pytest.mark.parametrize("model", ["claude-x", "anthropic:claude-x"])
def test_anthropic_protocol(server: Server, model: str) -> None:
    server.script = [says("Here:\n```json\n" + json.dumps(EDITS) + "\n```")]
    assert ask(model) == EDITS
    (request,) = server.requests
    assert request.path == "/v1/messages"
    assert KEY in (request.headers["x-api-key"], request.headers["authorization"].removeprefix("Bearer "))
    assert request.headers["anthropic-version"]
    assert request.body["model"] == "claude-x"
    assert request.body["max_tokens"] > 0


@pytest.mark.parametrize(
    "trouble",
    [
        fails(429),
        fails(500),
        fails(529),
        says("I would rather not."),
        fails(200, b'{"choices": null}'),
        fails(200, b'{"choices": [{"message": "text"}]}'),
        fails(200, b"<html>", **{"content-type": "text/html"}),
        fails(200, b"<html>"),
        fails(200, b'{"choices": []}'),
        fails(200, b'{"choices": [{"message": {"content": null}}]}'),
        fails(200, b"[" * 100_000),
        fails(200, b" " * 300_000),
        lambda handler: handler.connection.close(),
    ],
)
def test_transient_failures_are_retried(server: Server, trouble: Callable[..., None]) -> None:
    server.script = [trouble, trouble, says(json.dumps(EDITS))]
    assert ask() == EDITS
    assert len(server.requests) == 3


def test_a_slow_reply_times_out_and_is_retried(server: Server) -> None:
    server.script = [says("late", pause=1.0), says(json.dumps(EDITS))]
    started = time.monotonic()
    assert ask(timeout_s=0.3) == EDITS
    assert time.monotonic() - started < 0.95


def test_a_dripping_reply_times_out(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(20):
            handler.wfile.write(b" ")
            time.sleep(0.05)

    server.script = [drip]
    started = time.monotonic()
    assert ask(timeout_s=0.2, retries=0) is None
    assert time.monotonic() - started < 0.8
    assert "timed out" in caplog.text


@pytest.mark.parametrize("trouble", [fails(500), fails(429), says("no JSON")])
def test_after_the_retries_there_is_no_edit_and_no_key_in_the_log(
    server: Server, trouble: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    server.script = [trouble]
    with caplog.at_level(logging.DEBUG):
        assert ask(retries=2) is None
    assert len(server.requests) == 3
    assert caplog.text.count("gave no edit") == 1
    assert KEY not in caplog.text


@pytest.mark.parametrize("key", ["sk-very\nsecret", "sk-very-secrét"])
def test_a_key_that_is_no_valid_header_is_not_shown(
    server: Server, key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with caplog.at_level(logging.DEBUG):
        assert ask(retries=0) is None
    assert "sk-very" not in caplog.text
    assert server.requests == []


@pytest.mark.parametrize("status", [400, 404])
def test_permanent_failures_are_not_retried(server: Server, status: int) -> None:
    server.script = [fails(status)]
    assert ask() is None
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_ends_the_run_without_naming_it(server: Server, status: int) -> None:
    server.script = [fails(status)]
    with pytest.raises(UserError, match="refused the key in OPENAI_API_KEY") as error:
        ask()
    assert KEY not in str(error.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [302, 307])
def test_redirects_are_not_followed_with_the_key(server: Server, status: int) -> None:
    server.script = [fails(status, location=f"{server.url}/elsewhere")]
    assert ask() is None
    assert [request.path for request in server.requests] == ["/v1/chat/completions"]


def test_no_server_and_no_address(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert ask(retries=1) is None
    for address in ("file:///etc/passwd", "localhost:8000/v1", "http://localhost:port/v1", "http://"):
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        with pytest.raises(UserError, match=r"^OPENAI_BASE_URL is not an address like http://localhost:8000/v1$"):
            endpoint_of(settings())


def test_the_number_of_concurrent_requests_is_limited(server: Server) -> None:
    server.script = [says(json.dumps(EDITS), pause=0.05)]
    asked = Expert(endpoint_of(settings()), 5.0, 0)

    async def many() -> list[dict[str, str] | None]:
        return await asyncio.gather(*(asked.edits("Add 5.", NAMES) for _ in range(40)))

    assert asyncio.run(many()) == [EDITS] * 40
    assert 1 < server.most_active <= client.MAX_CONCURRENT


def test_an_endless_error_reply_is_cut_off(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    sent = []

    def flood(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(500)
        handler.end_headers()
        for _ in range(1000):
            handler.wfile.write(b" " * 65536)
            sent.append(1)

    server.script = [flood]
    assert ask(retries=0) is None
    assert "reply too long" in caplog.text
    server.close()
    assert len(sent) < 500


def test_edits_are_part_of_prompts_and_failures_are_a_metric(server: Server) -> None:
    server.script = [says('{"grow": "multiply by 7"}'), fails(400)]
    task = Task("toy/1", "def grow(n):\n", {"entry_point": "grow", "tests": ("assert grow(0) == 0",)})
    environment = CodeGeneration(2)
    attempt = environment.attempt(task, ["def aux(n): ...", "def grow(n): ..."], last=False)
    outcome = environment.outcome(attempt, ExecutionReport((), None, "", 0.0, 0.0, "none", True))
    change = Transition(settings(), environment)
    assert change.note == f"expert: some-model at {server.url.removeprefix('http://')}, with the key in OPENAI_API_KEY"

    async def twice() -> list[Observations]:
        return [await change.next_prompts(task, ["", ""], attempt, outcome) for _ in range(2)]

    received, unheard = asyncio.run(twice())
    assert server.requests[0].body["messages"][0]["content"] == environment.question(task, attempt)
    assert "An expert suggests" not in received.prompts[0]
    assert received.prompts[1].startswith("An expert suggests:\nmultiply by 7\n\n")
    assert received.metrics == {"expert/failures": 0.0}
    assert all("An expert suggests" not in prompt for prompt in unheard.prompts)
    assert unheard.metrics == {"expert/failures": 1.0}


def test_parse_edits_is_tolerant() -> None:
    assert parse_edits('{"aux": null, "grow": " x "}', NAMES) == {"grow": "x"}
    assert parse_edits('For {this}: {"note": 1} {"aux": {"code": "y"}} end', NAMES) == {"aux": '{"code": "y"}'}
    assert parse_edits('They wrote {"aux": "x"}. Better: {"aux": "y"}', NAMES) == {"aux": "y"}
    assert parse_edits('{"aux": "\\ud800"}', NAMES) == {"aux": "?"}
    assert len(parse_edits(json.dumps({"aux": "x" * 9000}), NAMES)["aux"]) == modes.MAX_EDIT_CHARS
    for text in ("", "{", "[]", '{"other": 1}', "{" * 3000, '{"a":' * 3000):
        with pytest.raises(EndpointError):
            parse_edits(text, NAMES)


KEYS = {f"{name}_API_KEY": "k" for name in ("OPENAI", "ANTHROPIC", "DEEPSEEK", "DASHSCOPE")}
LOCAL = "http://localhost:8000/v1"


@pytest.mark.parametrize(
    ("model", "variables", "base_url", "vendor", "asked", "host"),
    [
        ("some-model", {}, None, "openai", "some-model", "api.openai.com"),
        ("deepseek-coder", {}, None, "deepseek", "deepseek-coder", "api.deepseek.com"),
        ("DeepSeek-Coder", {}, None, "deepseek", "DeepSeek-Coder", "api.deepseek.com"),
        ("qwen3-coder-plus", {}, None, "dashscope", "qwen3-coder-plus", "dashscope.aliyuncs.com"),
        ("Claude-x", {}, None, "anthropic", "Claude-x", "api.anthropic.com"),
        ("openai:claude-clone", {}, None, "openai", "claude-clone", "api.openai.com"),
        # a custom server, for any model name
        ("qwen2.5-coder", {"OPENAI_BASE_URL": LOCAL}, None, "openai", "qwen2.5-coder", "localhost"),
        ("qwen2.5-coder", {}, LOCAL, "openai", "qwen2.5-coder", "localhost"),
        ("Qwen/Qwen2.5-7B", {"OPENAI_BASE_URL": LOCAL}, None, "openai", "Qwen/Qwen2.5-7B", "localhost"),
        ("dashscope:qwen-max", {"OPENAI_BASE_URL": LOCAL}, None, "dashscope", "qwen-max", "dashscope.aliyuncs.com"),
        ("claude-x", {"OPENAI_BASE_URL": LOCAL}, None, "anthropic", "claude-x", "api.anthropic.com"),
        ("claude-x", {}, LOCAL, "anthropic", "claude-x", "http://localhost:8000"),
        # OpenAI's own address says nothing, a vendor's own says more
        ("qwen-max", {"OPENAI_BASE_URL": "https://api.openai.com/v1/"}, None, "dashscope", "qwen-max", "dashscope."),
        (
            "qwen-max",
            {"OPENAI_BASE_URL": LOCAL, "DASHSCOPE_BASE_URL": "https://intl.example/v1"},
            None,
            "dashscope",
            "qwen-max",
            "intl.example",
        ),
    ],
)
def test_endpoints_of_model_names(
    model: str, variables: dict[str, str], base_url: str | None, vendor: str, asked: str, host: str
) -> None:
    endpoint = endpoint_of(settings(model, base_url), KEYS | variables)
    assert (endpoint.vendor.name, endpoint.model) == (vendor, asked)
    assert host in endpoint.address
    assert str(endpoint).startswith(f"{asked} at {host.removeprefix('http://')}")
    assert vendor != "anthropic" or not endpoint.address.endswith("/v1")


@pytest.mark.parametrize(
    ("model", "variables", "says"),
    [
        (None, {}, "needs external.expert_model, the model that writes the edits"),
        ("openai:", {}, "needs external.expert_model, the model that writes the edits"),
        ("some-model", {}, "set the environment variable OPENAI_API_KEY"),
        ("claude-x", {"ANTHROPIC_API_KEY": " "}, "set the environment variable ANTHROPIC_API_KEY"),
        ("deepseek-coder", {"OPENAI_API_KEY": "k"}, "set the environment variable DEEPSEEK_API_KEY"),
        ("Qwen-max", {"OPENAI_API_KEY": "k"}, "set the environment variable DASHSCOPE_API_KEY"),
        ("qwen", {"OPENAI_BASE_URL": LOCAL}, "OPENAI_API_KEY (any word, if the server asks for none)"),
        ("Qwen/Qwen2.5-7B", KEYS, "set external.expert_base_url to the server that does"),
    ],
)
def test_missing_settings_are_rejected_before_the_run(model: str | None, variables: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=r"^external\.") as missing:
        endpoint_of(settings(model), variables)
    assert str(missing.value).endswith(says)
    assert "\n" not in str(missing.value)


def test_an_address_with_a_password_is_not_shown() -> None:
    endpoint = endpoint_of(settings("x", "http://me:hush@host:1/v1"), KEYS)
    assert str(endpoint) == "x at host:1"
