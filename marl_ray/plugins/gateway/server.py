"""The HTTP server of the gateway, in the driver and on localhost only. Every episode has a token of its own."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from marl_ray.core.concurrency import wait_within
from marl_ray.core.connections import bind
from marl_ray.core.http_proxies import bypass_proxies_for_localhost
from marl_ray.http.request_guard import AsgiMessage, Receive, RequestGuard, Send, ServerLimits
from marl_ray.http.server import serve_http
from marl_ray.plugins.gateway.options import GatewayConfig
from marl_ray.plugins.gateway.program_episode import ProgramEpisode
from marl_ray.plugins.gateway.routes import EPISODE, SERVICE, gateway_routes
from marl_ray.plugins.gateway.service_program import ServiceProgram

HOST = "127.0.0.1"
START_S = 30.0
LIMITS = ServerLimits(body_bytes=8 << 20, requests=8192, answer_s=3600.0, drain_s=1.0)
"""Limits of a request. The episode's own time limit ends a request earlier."""
FILES_PER_COMMAND = 4
"""Descriptors of a running command: its two outputs, its process, and one while it starts."""


class EpisodeGuard(RequestGuard):
    """The checks of a request, in which a valid key is the token of a running episode."""

    def __init__(self) -> None:
        super().__init__(gateway_routes(), LIMITS, key="")
        self.episodes: dict[bytes, ProgramEpisode] = {}
        """Running episodes by token."""
        self.service: ServiceProgram | None = None
        self.keeps_connections = True
        """Whether a connection is kept after a reply."""

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if not self.keeps_connections:
            send = _closing(send)
        await super().__call__(scope, receive, send)

    def _has_key(self, scope: Any, headers: dict[bytes, bytes]) -> bool:
        """Return whether the token is of an episode or of the service, which the endpoints find in the scope."""
        token = token_of(headers)
        scope[EPISODE] = self.episodes.get(token)
        scope[SERVICE] = None
        if self.service is not None and hmac.compare_digest(token, self.service.token.encode()):
            scope[SERVICE] = self.service
        return scope[EPISODE] is not None or scope[SERVICE] is not None


def token_of(headers: dict[bytes, bytes]) -> bytes:
    """Return the token of a request, in the header of OpenAI's or of Anthropic's API; b"" without one.

    Tokens are random and looked up in a dictionary, so that the time of a comparison tells nothing about them.
    """
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer":
        token = headers.get(b"x-api-key", b"")
    return token.strip()


def _closing(send: Send) -> Send:
    """Return a `send` whose reply is the last one of its connection."""

    async def send_last(message: AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            headers = [header for header in message["headers"] if header[0].lower() != b"connection"]
            message = {**message, "headers": [*headers, (b"connection", b"close")]}
        await send(message)

    return send_last


class GatewayServer:
    """The server, started at the first episode. For use from a single event loop."""

    def __init__(self, config: GatewayConfig, service: ServiceProgram | None = None) -> None:
        self._config = config
        self.guard = EpisodeGuard()
        self.guard.service = service
        # A confined command has few connections: an idle one would keep the next one waiting.
        self.guard.keeps_connections = config.sandbox == "none"
        self.base_url = ""
        self._ready = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return as soon as the server accepts connections. Raises UserError if the port cannot be used, or if too few
        files may be open."""
        if self._serving is None:
            # A function in this process would otherwise ask the cluster's proxy for the gateway.
            bypass_proxies_for_localhost()
            self.listening = bind(HOST, self._config.port, "gateway.port")
            self.base_url = f"http://{HOST}:{self.listening.getsockname()[1]}/v1"
            commands = 0
            if self._config.service:
                commands = 1
            elif self._config.command is not None:
                commands = self._config.concurrency
            reserved = FILES_PER_COMMAND * commands
            serving = serve_http(self.guard, self.listening, self._ready.set, reserved_files=reserved)
            self._serving = asyncio.get_running_loop().create_task(serving)
        ready = asyncio.ensure_future(self._ready.wait())
        either = asyncio.wait({ready, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        try:
            await wait_within(START_S, "the gateway to start", "", either)
        finally:
            ready.cancel()
        if self._serving.done():
            await self._serving  # raises its error

    @contextmanager
    def serving(self, episode: ProgramEpisode) -> Iterator[None]:
        """Accept the episode's token within the block."""
        token = episode.token.encode()
        self.guard.episodes[token] = episode
        try:
            yield
        finally:
            del self.guard.episodes[token]

    async def close(self) -> None:
        """Stop the server."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
