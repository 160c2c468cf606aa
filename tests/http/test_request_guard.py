"""The checks of a request before its endpoint, without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from marl_ray.core.concurrency import DeadlineExceeded
from marl_ray.core.errors import RejectedMessages, UserError
from marl_ray.http.request_formats import ApiError
from marl_ray.http.request_guard import LOCAL_NAMES, RequestGuard, ServerLimits
from marl_ray.http.server import api_errors


async def _echo(request: Request) -> JSONResponse:
    return JSONResponse({"bytes": len(await request.body())})


async def _greet(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("hello")
    await socket.close()


def guarded(key: str | None = None, names: tuple[str, ...] | None = None, **limits: Any) -> RequestGuard:
    routes: list[Any] = [Route("/v1/echo", _echo, methods=["POST", "GET"]), Route("/health", _echo)]
    routes.append(WebSocketRoute("/ws", _greet))
    return RequestGuard(routes, ServerLimits(**limits), key, names)


JSON = {"content-type": "application/json"}


def test_the_guard_limits_bodies_and_types() -> None:
    client = TestClient(guarded(body_bytes=100))
    assert client.post("/v1/echo", content=b"x" * 100, headers=JSON).json() == {"bytes": 100}
    assert client.post("/v1/echo", content=b"x" * 101, headers=JSON).status_code == 413
    unsized = client.post("/v1/echo", content=iter([b"x" * 60, b"x" * 60]), headers=JSON)
    assert (unsized.status_code, unsized.json()["error"]["code"]) == (413, "too_large")
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert client.post("/v1/echo", content=b"{}", headers={"content-type": kind}).status_code == 415


def test_the_guard_checks_the_key() -> None:
    client = TestClient(guarded(key="k" * 20))
    for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic " + "k" * 20}):
        reply = client.post("/v1/echo", content=b"{}", headers=JSON | header)
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
    assert (
        client.post("/v1/echo", content=b"{}", headers=JSON | {"authorization": f"Bearer {'k' * 20}"}).status_code
        == 200
    )
    assert client.get("/v1/echo").status_code == 401
    assert client.get("/health").status_code == 200


def test_the_guard_rejects_other_hosts() -> None:
    client = TestClient(guarded(names=("localhost", "[::1]")))
    for host, status in (("localhost", 200), ("localhost:8000", 200), ("[::1]:8000", 200), ("evil.example", 421)):
        assert client.get("/health", headers={"host": host}).status_code == status


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000"])
def test_a_websocket_of_this_machine_is_accepted(host: str) -> None:
    with TestClient(guarded(names=LOCAL_NAMES)).websocket_connect("/ws", headers={"host": host}) as socket:
        assert socket.receive_text() == "hello"


@pytest.mark.parametrize(
    "headers", [{"host": "evil.example"}, {"host": "localhost", "origin": "http://localhost"}, {"host": ""}]
)
def test_a_websocket_of_a_page_or_for_another_host_is_closed(headers: dict[str, str]) -> None:
    client = TestClient(guarded(names=LOCAL_NAMES))
    with pytest.raises(WebSocketDisconnect) as closed, client.websocket_connect("/ws", headers=headers):
        pass
    assert closed.value.code == 1008


def test_the_guard_rejects_ambiguous_lengths() -> None:
    headers = JSON | {"content-length": "2", "transfer-encoding": "chunked"}
    assert TestClient(guarded()).post("/v1/echo", content=b"{}", headers=headers).status_code == 400


def test_the_guard_limits_requests_in_progress_and_stops() -> None:
    guard = guarded(requests=1)
    guard.in_progress = 1
    client = TestClient(guard)
    reply = client.post("/v1/echo", content=b"{}", headers=JSON)
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
    guard.in_progress = 0
    assert client.post("/v1/echo", content=b"{}", headers=JSON).status_code == 200
    assert guard.in_progress == 0
    guard.is_stopping = True
    assert client.post("/v1/echo", content=b"{}", headers=JSON).status_code == 503


def test_a_slow_body_is_given_up() -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/echo", "query_string": b"", "root_path": ""}
    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    asyncio.run(guarded(body_s=0.01)(scope | {"headers": headers}, never, send))
    assert sent[0]["status"] == 408


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (DeadlineExceeded("agent 0 did not answer"), 504, "agent 0 did not answer"),
        (RejectedMessages("the chat template rejects these messages"), 400, "rejects these messages"),
        (UserError("agent 0 generator 0 on 10.0.0.1 died"), 503, "the models are not available: try again"),
    ],
)
def test_an_error_of_a_model_has_a_status(error: UserError, status: int, text: str) -> None:
    with pytest.raises(ApiError) as answered, api_errors():
        raise error
    assert answered.value.status == status
    assert text in answered.value.message
    assert "10.0.0.1" not in answered.value.message
