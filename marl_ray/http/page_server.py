"""The HTTP server on a thread of its own, for processes whose main thread does other work."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from marl_ray.core.connections import bind
from marl_ray.http.request_guard import RequestGuard
from marl_ray.http.server import serve_http

START_S = 30.0


class PageServer:
    """A server that runs from its construction until `close`. Raises UserError, which names `settings`, if the address
    cannot be used, and if too few files may be open."""

    def __init__(self, guard: RequestGuard, host: str, port: int, settings: str) -> None:
        self._guard = guard
        self._started: Future[None] = Future()
        self.listener = bind(host, port, settings)
        self.host, self.port = self.listener.getsockname()[:2]
        self._loop = asyncio.new_event_loop()
        self._serving = self._loop.create_task(self._serve())
        # A process that fails does not wait for its clients.
        self._thread = threading.Thread(target=self._run, name="page server", daemon=True)
        self._thread.start()
        self._started.result(START_S)

    def close(self) -> None:
        """Stop the server after the answers in progress."""
        if self._thread.is_alive():  # else the server has failed, and its loop is closed
            self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join(self._guard.limits.drain_s + START_S)

    def _run(self) -> None:
        self._loop.run_until_complete(asyncio.wait({self._serving}))
        self._loop.close()

    async def _serve(self) -> None:
        with self.listener:
            try:
                await serve_http(self._guard, self.listener, lambda: self._started.set_result(None))
            except Exception as error:
                if self._started.done():
                    raise
                # The constructor raises the error in the thread of its caller.
                self._started.set_exception(error)
