"""The HTTP application and its server.

uvicorn serves with h11, whose parser is strict. Signals are handled by `StopSignals`: a stop rejects new requests,
waits for answers in progress at most `drain_s` seconds, and then closes the connections.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import cache, partial
from importlib import resources
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from marl_ray.core.connections import CHECK_S, HEADER_S, WRITE_S, BoundedListener, connection_limit
from marl_ray.serving.api_routes import ApiRoutes
from marl_ray.serving.mcp_tool import mcp_app, mcp_installed
from marl_ray.serving.request_formats import ApiError
from marl_ray.serving.request_guard import LOCAL_NAMES, RequestGuard, ServerLimits
from marl_ray.serving.team_player import TeamPlayer

HEADER_BYTES = 1 << 16
KEEP_ALIVE_S = 120
"""Seconds until the server closes an idle connection. Clients and proxies close theirs earlier by default (httpx after
5 s, nginx after 60 s, Go after 90 s), so that no client sends a request on a connection that is about to close."""
CONNECTIONS = 512
"""Connections of a server with few requests in progress."""
PAGE_HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "x-frame-options": "DENY"}
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def make_app(player: TeamPlayer, roles: list[str | None], limits: ServerLimits, key: str | None, host: str) -> Any:
    """Return the guarded ASGI application."""
    routes: list[Any] = [*ApiRoutes(player, roles, limits).routes(), Route("/", _page)]
    mounted = mcp_app(player, limits.answer_s, limits.body_bytes) if mcp_installed() else None
    if mounted is not None:
        routes.append(Mount("/", mounted))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if mounted is not None:
                await stack.enter_async_context(mounted.router.lifespan_context(mounted))
            yield

    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=error_handlers())
    names = None if key is not None else tuple(dict.fromkeys((*LOCAL_NAMES, host)))
    return RequestGuard(app, limits, key, names)


def error_handlers() -> dict[Any, Any]:
    """Return the handlers by exception that answer in the format of the API."""
    return {ApiError: _api_error, HTTPException: _http_error, Exception: _failure}


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that leaves signals alone, and calls `on_ready` as soon as it accepts connections."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(H11Protocol):
    """uvicorn's protocol of a connection, which limits the connection's waits."""

    def __init__(self, listening: BoundedListener, **settings: Any) -> None:
        super().__init__(**settings)
        self._listening = listening

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection = self._listening.connections[transport.get_extra_info("peername")]
        self._connection.end = transport.abort

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_protocol() is not self:
            return  # a WebSocket, whose own protocol notices a client that has gone
        if self._is_answering():
            self._connection.begin_request()
        else:  # the headers of a request have begun
            self._connection.shorten_wait(HEADER_S)

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._connection.begin_request()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()  # begins the next request if it has arrived already
        if not self._is_answering():
            self._connection.await_request(KEEP_ALIVE_S)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._connection.shorten_wait(WRITE_S)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._is_answering():
            self._connection.begin_request()
        else:
            self._connection.await_request(KEEP_ALIVE_S)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


async def serve_http(
    guard: Any,
    listening: BoundedListener,
    limits: ServerLimits,
    on_ready: Callable[[], None],
    ws: Literal["none", "auto"] = "none",
    reserved_files: int = 0,
) -> None:
    """Serve until the task is cancelled, then stop as the module's docstring says. Call `on_ready` as soon as the
    server accepts connections. `ws` auto: accept WebSockets too, which `guard` does not check. `reserved_files` are
    descriptors that the process needs beside the connections. Raises UserError if there are too few."""
    # Clients may keep as many idle connections as they have requests in progress.
    listening.limit = connection_limit(max(CONNECTIONS, 2 * limits.requests), reserved_files)
    settings = uvicorn.Config(
        guard,
        http=partial(_Protocol, listening),  # type: ignore[arg-type]
        ws=ws,
        ws_max_size=limits.body_bytes,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=round(limits.drain_s),
    )
    server = _Uvicorn(settings, on_ready)
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    ending = asyncio.ensure_future(_end_overdue(listening))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        guard.is_stopping = True
        server.should_exit = True
        done, _ = await asyncio.wait({serving}, timeout=limits.drain_s + 5)
        if not done:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        raise
    finally:
        ending.cancel()


async def _end_overdue(listening: BoundedListener) -> None:
    while True:
        await asyncio.sleep(CHECK_S)
        listening.end_overdue()


@cache
def page() -> tuple[str, str]:
    """Return the page and its Content-Security-Policy, which names the hashes of its script and style."""
    text = resources.files("marl_ray.serving").joinpath("templates/page.html").read_text(encoding="utf-8")
    hashes = {}
    for tag in ("script", "style"):
        content = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digests = (base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in content)
        hashes[tag] = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


async def _page(request: Request) -> Response:
    text, policy = page()
    return HTMLResponse(text, headers=PAGE_HEADERS | {"content-security-policy": policy})


async def _api_error(request: Request, error: ApiError) -> Response:
    headers = {"retry-after": "1"} if error.status in (429, 503) else None
    return JSONResponse(error.body(), error.status, headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    return JSONResponse(ApiError(error.status_code, error.detail).body(), error.status_code)


async def _failure(request: Request, error: Exception) -> Response:
    return JSONResponse(ApiError(500, "the server failed; its log has the cause").body(), 500)
