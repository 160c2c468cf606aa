"""More than 500 malformed or hostile requests to a gateway with two episodes: each is refused, or is harmless."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from marl_ray.core.episode import Task
from marl_ray.environments import ENVIRONMENTS
from marl_ray.plugins.gateway.program_episode import ProgramEpisode
from marl_ray.toy import BASE_PATH
from tests.plugins.gateway.scripted_agents import ScriptedAgent, gateway_config
from tests.plugins.serve.hostile_requests import NAMES, reply_to
from tests.rollout.helpers import NoExecutor

USER = [{"role": "user", "content": "Hello"}]
CHAT = {"model": "coder", "messages": USER, "max_tokens": 4, "n": 1, "stop": "x", "stream": False, "tools": []}
MESSAGES = {"model": "coder", "messages": USER, "max_tokens": 4, "system": "s", "stop_sequences": ["x"], "tools": []}
TEXT = {"model": "coder", "prompt": "Hello", "max_tokens": 4}
BODIES: dict[str, dict[str, Any]] = {"/chat/completions": CHAT, "/messages": MESSAGES, "/completions": TEXT}
VALUES: tuple[Any, ...] = (
    *(-1, 0, 10**30, 1e308, float("nan"), True, "", "\x00", "\ud800", "x" * 100_000, [], [None], [[[]]], {}, {"a": {}}),
    *([{"role": "user"}], [{"role": "tool", "content": [{"type": "file"}]}], [{"type": "function", "function": 1}]),
)
PATHS = (
    *(
        "/episode/../../etc/passwd",
        "/episode/%2e%2e/task",
        "//episode/task",
        "/episode/task/../reward",
        "/../v1/tasks/next",
    ),
    *(
        "/models/..%2f..%2fetc%2fpasswd",
        "/models/\x00",
        "/files",
        "/batches",
        "/fine_tuning/jobs",
        "/episode",
        "/tasks",
    ),
    *("/episode/task?token=x", "/chat/completions/../episode/reward", "/%00", "/v1/v1/models", "/models/../../health"),
)
DEEP = b"[" * 100_000
BROKEN = (
    *(b"", b"{", b"\xff\xfe", b'{"model": "coder\xff"}', b'"\\ud800"', DEEP, b'{"messages": ' + DEEP, b"nul", b"NaN"),
    *(b'{"model": "coder", "messages": [{"role": "user", "content": "' + b"x" * (9 << 20) + b'"}]}', b"\x00" * 1000),
)


def http(method: str, path: str, token: str | None, body: bytes = b"", headers: str = "") -> bytes:
    own = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    own += "" if "ontent-" in headers else f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    own += "" if token is None else f"Authorization: Bearer {token}\r\n"
    return (own + headers + "\r\n").encode("utf-8", "surrogatepass") + body


def with_token(token: str, ended: str) -> Iterator[tuple[str, bytes]]:
    """Yield requests with the token of a running episode, which may be answered if they have no further effect."""
    for path, body in BODIES.items():
        for key in body:
            for number, value in enumerate(VALUES):
                changed = json.dumps(body | {key: value}).encode()
                yield f"{path} {key} value {number}", http("POST", f"/v1{path}", token, changed)
        whole = json.dumps(body).encode()
        for cut in range(1, len(whole), 8):
            yield f"{path} cut {cut}", http("POST", f"/v1{path}", token, whole[:cut])
        for number, broken in enumerate(BROKEN):
            yield f"{path} broken {number}", http("POST", f"/v1{path}", token, broken)
        for method in ("PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "CONNECT", "X" * 99):
            yield f"{path} {method}", http(method, f"/v1{path}", token, whole)
    for name in NAMES:
        yield (
            f"model {name[:20]!r}",
            http("POST", "/v1/chat/completions", token, json.dumps(CHAT | {"model": name}).encode()),
        )
    for path in PATHS:
        yield f"path {path!r}", http("GET", f"/v1{path}", token)
    for number, broken in enumerate(BROKEN):
        yield f"reward broken {number}", http("POST", "/v1/episode/reward", token, broken)
    yield "task for a service", http("GET", "/v1/tasks/next", token)


def without_token(token: str, ended: str, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield requests that must be refused."""
    reward = json.dumps({"reward": 100}).encode()
    tokens = [
        ended,
        "",
        token[:-1],
        token + "x",
        token.swapcase(),
        token[::-1],
        f" {token}x",
        "../" + token,
        "*",
        "null",
    ]
    tokens += [secrets.token_urlsafe(24) for _ in range(20)]
    tokens += ["".join(rng.sample(token, len(token))) for _ in range(20)]
    for number, wrong in enumerate(tokens):
        yield f"reward token {number}", http("POST", "/v1/episode/reward", wrong, reward)
        yield f"task token {number}", http("GET", "/v1/episode/task", wrong)
    chat, whole = "/v1/chat/completions", json.dumps(CHAT).encode()
    yield "no token", http("POST", chat, None, whole)
    yield "another scheme", http("POST", chat, None, whole, f"Authorization: Basic {token}\r\nContent-Type: a\r\n")
    yield "another host", http("POST", chat, token, whole).replace(b"Host: 127.0.0.1", b"Host: evil.example")
    size = f"Content-Type: application/json\r\nContent-Length: {len(whole)}\r\n"
    smuggled = whole + b"POST /v1/episode/reward HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    yield "length and chunks", http("POST", chat, token, smuggled, f"{size}Transfer-Encoding: chunked\r\n")
    yield "two lengths", http("POST", chat, token, smuggled, f"{size}Content-Length: 4\r\n")
    yield "a form", http("POST", chat, token, whole, f"Content-Type: text/plain\r\nContent-Length: {len(whole)}\r\n")
    yield "huge header", http("POST", chat, token, whole, f"{size}X-A: {'a' * 200_000}\r\n")
    yield "null in a header", http("POST", chat, token, whole, f"{size}X-A: a\0b\r\n")
    yield "null", http("POST", chat, "null", whole)
    yield "no request", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20


@pytest.mark.slow
def test_hostile_requests_are_refused_or_harmless() -> None:
    config = gateway_config(function="tests.plugins.gateway.test_exact_ids:converses", max_calls=10_000)
    agents = [ScriptedAgent(str(BASE_PATH), lambda *_: "yes") for _ in range(2)]

    async def attack() -> None:
        environment = ENVIRONMENTS.get("gateway").from_config(config)
        runner = environment.player(config, agents, NoExecutor())
        server = await environment.server()
        task = Task("secret-task", "p", {})
        first, other, ended = (
            ProgramEpisode(task, runner._agents(False), (1, ("train", n)), 10_000, 0, {"secret": n}, server.base_url)
            for n in range(3)
        )
        try:
            with server.serving(ended):
                pass
            with server.serving(first), server.serving(other):
                statuses: Counter[int] = Counter()
                requests = dict(with_token(first.token, ended.token))
                refused = dict(without_token(first.token, ended.token, random.Random(1)))
                for name, request in (requests | refused).items():
                    reply = await asyncio.to_thread(reply_to, server.base_url, request)
                    status = int(reply.split()[1]) if reply else 0
                    statuses[status] += 1
                    assert status < 500, (name, reply[:300])
                    assert name not in refused or status in (0, 400, 401, 415, 421, 431), (name, reply[:300])
                    assert other.token.encode() not in reply
                    assert b"root:" not in reply
                assert sum(statuses.values()) > 500
                assert statuses[200] < 200
                assert (other.calls, ended.calls, other.posted, ended.posted) == ([], [], None, None)
                assert not isinstance(first.posted, dict)
                answers = await first.ask("coder", "x"), await other.ask("tester", "x")
                assert answers == ("yes", "yes")
        finally:
            await environment.close()

    asyncio.run(attack())
