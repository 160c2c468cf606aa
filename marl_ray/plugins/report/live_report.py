"""The report as a page on this machine that follows a run in progress (`marl-ray report --serve`).

The page asks for the version of the runs' files every few seconds, and for the new curves when the version has changed.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from marl_ray.core.connections import bind
from marl_ray.core.errors import UserError
from marl_ray.core.stop_signals import StopSignals
from marl_ray.http.http_server import serve_http
from marl_ray.http.request_formats import ApiError
from marl_ray.http.request_guard import RequestGuard, ServerLimits
from marl_ray.plugins.report.html_report import render_report
from marl_ray.storage.run_folder import RunFolder

HOST = "127.0.0.1"
NOT_KEPT = {"cache-control": "no-store"}


def files_version(folders: Sequence[RunFolder]) -> str:
    """Return a text that changes with the metrics of the runs."""
    facts = []
    for folder in folders:
        try:
            stat = folder.metrics.stat()
            facts.append((stat.st_size, stat.st_mtime_ns))
        except FileNotFoundError:
            facts.append((0, 0))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


class LiveReport:
    """The last page, rendered again when the files have changed. Its endpoints run in threads."""

    def __init__(self, folders: Sequence[RunFolder], episodes: int) -> None:
        self._folders = folders
        self._episodes = episodes
        self._lock = threading.Lock()
        self._files = ""
        self._page = ""

    def page(self) -> str:
        """Return the page. Raises UserError for damaged files."""
        with self._lock:
            version = files_version(self._folders)
            if self._files != version:
                self._page = render_report(self._folders, self._episodes, live=True)
                self._files = version
            return self._page

    def get_page(self, request: Request) -> Response:
        """Answer /."""
        try:
            return HTMLResponse(self.page(), headers=NOT_KEPT)
        except UserError as error:
            raise ApiError(500, str(error)[:200]) from None

    def get_version(self, request: Request) -> Response:
        """Answer /version."""
        return PlainTextResponse(files_version(self._folders), headers=NOT_KEPT)


def serve_report(folders: Sequence[RunFolder], episodes: int, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve the page on this machine until a signal. Raises UserError if the port is in use or a run is damaged."""
    report = LiveReport(folders, episodes)
    report.page()
    routes = [Route("/", report.get_page), Route("/version", report.get_version)]
    guard = RequestGuard(routes, ServerLimits(drain_s=1.0))
    with bind(HOST, port, "--port") as listening, StopSignals() as signals:
        address = f"http://{HOST}:{listening.getsockname()[1]}/"
        signals.run(lambda: serve_http(guard, listening, lambda: on_ready(address)))
