"""The application of a server: its routes behind the checks of a request's host, key, format, size, time and number.

| condition | status |
|---|---|
| the server is about to stop | 503 |
| another `Host` than the served one (DNS rebinding), without a key | 421 |
| both `Content-Length` and `Transfer-Encoding`, or several lengths | 400 |
| no valid key below /v1 or /mcp | 401 |
| a body of another type than JSON, which a page of another site could send | 415 |
| a body larger than the limit | 413 |
| a body that does not arrive in time | 408 |
| too many requests in progress | 429 |

A WebSocket for another `Host`, or from a page in a browser, is closed with code 1008.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from marl_ray.http.request_formats import ApiError

AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
PROTECTED = ("/v1", "/mcp")
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of a server: bytes of a body, requests in progress, seconds for the body and for the answer, and seconds
    that a stop waits for answers in progress."""

    body_bytes: int = 1 << 20
    requests: int = 256
    body_s: float = 30.0
    answer_s: float = 300.0
    drain_s: float = 60.0


class RequestGuard:
    """The ASGI application of a server: its routes behind the checks above. `key` None: no key is needed; `names` are
    the accepted names in `Host` (None: any). Starlette's own TrustedHostMiddleware would answer 400 in plain text, and
    accept WebSockets of pages in a browser."""

    def __init__(
        self,
        routes: Sequence[BaseRoute],
        limits: ServerLimits,
        key: str | None = None,
        names: Sequence[str] | None = LOCAL_NAMES,
        lifespan: Any = None,
    ) -> None:
        handlers: dict[Any, Any] = {ApiError: _api_error, HTTPException: _http_error, Exception: _failure}
        self.app: Any = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
        self.limits = limits
        self.names = names
        self._key = None if key is None else key.encode()
        self.in_progress = 0
        self.is_stopping = False

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        if scope["type"] == "websocket":
            # Browsers let the pages of every site open WebSockets, and name the site in `Origin`.
            if b"origin" in dict(headers) or not self._serves(dict(headers)):
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self.app(scope, receive, send)
            return
        started = False

        async def guarded_send(message: AsgiMessage) -> None:
            nonlocal started
            started = True
            await send(message)

        counted = False
        try:
            counted = self._check(scope, headers)
            reader = await self._read(receive) if scope["method"] == "POST" else receive
            if reader is not None:
                await self.app(scope, reader, guarded_send)
        except ApiError as error:
            if started:
                raise
            reply = error_reply(error)
            reply.headers["connection"] = "close"  # the body may not have been read
            await reply(scope, receive, send)
        finally:
            self.in_progress -= counted

    def _serves(self, headers: dict[bytes, bytes]) -> bool:
        """Return whether the name in `Host`, without its port, is a name of this server."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return self.names is None or name in self.names

    def _check(self, scope: Any, headers: list[tuple[bytes, bytes]]) -> bool:
        """Raise ApiError for a rejected request. Return whether the request counts as in progress."""
        path = scope["path"]
        values = dict(headers)
        if self.is_stopping and path.startswith(PROTECTED):
            raise ApiError(503, "the server is stopping", "stopping")
        lengths = [value for name, value in headers if name == b"content-length"]
        # A proxy before this server could read another length than this server, and so another next request.
        if len(lengths) > 1 or (lengths and b"transfer-encoding" in values):
            raise ApiError(400, "the body has several lengths", "invalid_request")
        if not self._serves(values):
            raise ApiError(421, "this server does not serve the requested host", "wrong_host")
        is_protected = path.startswith(PROTECTED)
        if is_protected and self._key is not None and not self._has_key(scope, values):
            raise ApiError(401, "no valid API key: send it as Authorization: Bearer KEY", "invalid_api_key")
        if scope["method"] != "POST":
            return False
        # A page of another site may send any other type without asking.
        kind = values.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise ApiError(415, "the body should be application/json", "unsupported_media_type")
        if lengths and lengths[0].isdigit() and int(lengths[0]) > self.limits.body_bytes:
            raise self._too_large()
        if not is_protected:
            return False
        if self.in_progress >= self.limits.requests:
            raise ApiError(429, f"more than {self.limits.requests} requests are in progress: try again", "overloaded")
        self.in_progress += 1
        return True

    def _has_key(self, scope: Any, headers: dict[bytes, bytes]) -> bool:
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        # The time of this comparison tells nothing about the key.
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key or b"")

    async def _read(self, receive: Receive) -> Receive | None:
        """Read the whole body, so that its errors occur before the endpoint. Return a `receive` that returns the body,
        None if the client has gone. Raises ApiError for a body that is too large or too slow."""
        body = b""
        complete = False
        try:
            async with asyncio.timeout(self.limits.body_s):
                while not complete:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    body += message.get("body", b"")
                    complete = not message.get("more_body", False)
                    if len(body) > self.limits.body_bytes:
                        raise self._too_large()
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time", "timeout") from None
        pending: list[AsgiMessage] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body() -> AsgiMessage:
            return pending.pop() if pending else await receive()

        return receive_body

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body has more than {self.limits.body_bytes} bytes", "too_large")


def error_reply(error: ApiError) -> Response:
    """Return the reply of an error in the API's format."""
    headers = {"retry-after": "1"} if error.status in (429, 503) else None
    return JSONResponse(error.body(), error.status, headers)


async def _api_error(request: Request, error: ApiError) -> Response:
    return error_reply(error)


async def _http_error(request: Request, error: HTTPException) -> Response:
    return error_reply(ApiError(error.status_code, error.detail))


async def _failure(request: Request, error: Exception) -> Response:
    return error_reply(ApiError(500, "the server failed; its log has the cause"))
