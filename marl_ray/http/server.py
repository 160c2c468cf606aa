"""The HTTP server of the package.

uvicorn serves with h11, whose parser is strict. Signals are handled by `StopSignals`: a stop rejects new requests,
waits for answers in progress at most `drain_s` seconds, and then closes the connections.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from marl_ray.core.concurrency import DeadlineExceeded
from marl_ray.core.connections import CHECK_S, HEADER_S, WRITE_S, BoundedListener, connection_limit
from marl_ray.core.errors import RejectedMessages, UserError
from marl_ray.http.request_formats import ApiError
from marl_ray.http.request_guard import RequestGuard

logger = logging.getLogger(__name__)
HEADER_BYTES = 1 << 16
T = TypeVar("T")
KEEP_ALIVE_S = 120
"""Seconds until the server closes an idle connection. Clients and proxies close theirs earlier by default (httpx after
5 s, nginx after 60 s, Go after 90 s), so that no client sends a request on a connection that is about to close."""
CONNECTIONS = 512
"""Connections of a server with few requests in progress."""


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
    guard: RequestGuard,
    listening: BoundedListener,
    on_ready: Callable[[], None],
    ws: Literal["none", "auto"] = "none",
    reserved_files: int = 0,
) -> None:
    """Serve until the task is cancelled, then stop as the module's docstring says. Call `on_ready` as soon as the
    server accepts connections. `ws` auto: accept WebSockets too. `reserved_files` are descriptors that the process
    needs beside the connections. Raises UserError if there are too few."""
    limits = guard.limits
    # Clients may keep as many idle connections as they have requests in progress.
    listening.limit = connection_limit(max(CONNECTIONS, 2 * limits.requests), reserved_files)
    settings = uvicorn.Config(
        guard,  # type: ignore[arg-type]
        http=partial(_Protocol, listening),  # type: ignore[arg-type]
        ws=ws,
        ws_max_size=limits.body_bytes,
        lifespan="on",  # an application that cannot start ends the server
        log_config=None,  # the command has configured the logs
        access_log=False,
        server_header=False,  # clients learn no version
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
        # uvicorn itself stops waiting after drain_s.
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


async def health(request: Request) -> Response:
    """Return 200 as long as the server runs."""
    return JSONResponse({"status": "ok"})


@contextmanager
def api_errors() -> Iterator[None]:
    """Raise the errors of models as ApiError."""
    try:
        yield
    except DeadlineExceeded as error:
        raise ApiError(504, str(error), "timeout") from None
    except RejectedMessages as error:
        raise ApiError(400, str(error), "invalid_value", "messages") from None
    except UserError as error:
        # The client learns nothing about the machines of the run.
        logger.warning("a request failed: %s", error)
        raise ApiError(503, "the models are not available: try again", "unavailable") from None


async def until_disconnect(request: Request, answering: asyncio.Future[T]) -> T:
    """Return the answers. If the client closes the connection, stop the models. Raises ApiError."""

    async def wait_for_end() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    gone = asyncio.ensure_future(wait_for_end())
    either: set[asyncio.Future[Any]] = {answering, gone}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ApiError(499, "the client closed the connection")
        return answering.result()
    finally:
        for task in either:
            task.cancel()
        # The models have stopped before the next request begins.
        await asyncio.gather(*either, return_exceptions=True)


async def first_part(request: Request, answering: asyncio.Future[Any], part: Coroutine[Any, Any, T]) -> T:
    """Return the first part of an answer that will be streamed, so that an earlier error still has a status. If there
    is none, or if the client closes the connection before, stop the models. Raises ApiError."""
    try:
        return await until_disconnect(request, asyncio.ensure_future(part))
    except BaseException:
        answering.cancel()
        raise


def event_stream(events: AsyncIterator[bytes]) -> Response:
    """Return a reply of server-sent events."""
    return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
