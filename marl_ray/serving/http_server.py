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
from functools import cache
from importlib import resources
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route

from marl_ray.core.errors import UserError
from marl_ray.serving.api_routes import ApiRoutes
from marl_ray.serving.mcp_tool import mcp_app, mcp_installed
from marl_ray.serving.request_formats import ApiError
from marl_ray.serving.request_guard import LOCAL_NAMES, RequestGuard, ServerLimits
from marl_ray.serving.team_player import TeamPlayer

HEADER_BYTES = 1 << 16
KEEP_ALIVE_S = 120
"""Seconds until the server closes an idle connection. Clients and proxies close theirs earlier by default (httpx after
5 s, nginx after 60 s, Go after 90 s), so that no client sends a request on a connection that is about to close."""
PAGE_HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "x-frame-options": "DENY"}
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def make_app(player: TeamPlayer, roles: list[str | None], limits: ServerLimits, key: str | None, host: str) -> Any:
    """Return the guarded ASGI application."""
    routes: list[Any] = [*ApiRoutes(player, roles, limits.answer_s).routes(), Route("/", _page)]
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


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises UserError if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol, asyncio disables Nagle's algorithm, which would delay the second part of a reply by 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise UserError(f"{host}:{port} cannot be used ({error.strerror}): give another --host or --port") from None
    return listening


async def serve_http(
    guard: Any,
    listening: socket.socket,
    limits: ServerLimits,
    on_ready: Callable[[], None],
    ws: Literal["none", "auto"] = "none",
) -> None:
    """Serve until the task is cancelled, then stop as the module's docstring says. Call `on_ready` as soon as the
    server accepts connections. `ws` auto: accept WebSockets too, which `guard` does not check."""
    settings = uvicorn.Config(
        guard,
        http="h11",
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
