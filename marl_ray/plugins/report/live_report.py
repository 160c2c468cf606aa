"""The pages as a server on this machine that follows runs in progress (`marl-ray report --serve`).

A page asks for the version of its run every few seconds, and for the run's data when the version has changed.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from marl_ray.core.connections import bind
from marl_ray.core.stop_signals import StopSignals
from marl_ray.http.request_guard import RequestGuard, ServerLimits
from marl_ray.http.server import serve_http
from marl_ray.plugins.report.live_episodes import NOT_KEPT, LiveEpisodes, damage_is_answered
from marl_ray.plugins.report.run_data import require_run, run_data
from marl_ray.plugins.report.run_list import list_data, read_listed_run
from marl_ray.plugins.report.run_page import data_text, render_list, render_run_data
from marl_ray.storage.run_folder import RunFolder
from marl_ray.storage.run_lock import lock_holder

HOST = "127.0.0.1"


def files_version(folder: RunFolder) -> str:
    """Return a text that changes with the metrics, the episodes, the state and the error of a run."""
    watched = [folder.config, folder.metrics, folder.episodes, folder.machine, folder.error]
    if not folder.metrics.exists():
        watched.append(folder.log_file)  # a run that starts shows its messages
    facts: list[Any] = [_stat(file) for file in watched]
    # A process that is killed changes no file.
    facts.append(lock_holder(folder.lock) is not None)
    return _digest(facts)


def _stat(file: Path) -> tuple[int, int] | None:
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _digest(facts: Any) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


class LivePage:
    """A page, and its data as JSON, made again when the version has changed. Its endpoints run in threads."""

    def __init__(self, version: Callable[[], str], data: Callable[[], Any], render: Callable[[Any], str]) -> None:
        self._version = version
        self._make_data = data
        self._render = render
        self._lock = threading.Lock()
        self._made = ""
        self._data: Any = None

    def data(self) -> Any:
        """Return the data of the page. Raises UserError for damaged files."""
        with self._lock:
            version = self._version()
            if self._made != version:
                self._data = self._make_data()
                self._made = version
            return self._data

    def get_page(self, request: Request) -> Response:
        """Answer /."""
        with damage_is_answered():
            return HTMLResponse(self._render(self.data()), headers=NOT_KEPT)

    def get_data(self, request: Request) -> Response:
        """Answer /data."""
        with damage_is_answered():
            return Response(data_text(self.data()), media_type="application/json", headers=NOT_KEPT)

    def get_version(self, request: Request) -> Response:
        """Answer /version."""
        return PlainTextResponse(self._version(), headers=NOT_KEPT)

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the page."""
        return [Route("/", self.get_page), Route("/data", self.get_data), Route("/version", self.get_version)]


def run_routes(folder: RunFolder) -> list[BaseRoute]:
    """Return the routes of a run's page."""
    page = LivePage(
        lambda: files_version(folder),
        lambda: run_data(folder, live=True),
        lambda data: render_run_data(data, live=True),
    )
    return [*page.routes(), *LiveEpisodes(folder).routes()]


def list_routes(folders: Sequence[RunFolder]) -> list[BaseRoute]:
    """Return the routes of a list of runs, and of each run's page below it."""
    links = [f"runs/{number}/" for number in range(len(folders))]

    def version() -> str:
        return _digest([files_version(folder) for folder in folders])

    def data() -> Any:
        return list_data([read_listed_run(folder, link) for folder, link in zip(folders, links, strict=True)])

    routes = LivePage(version, data, lambda data: render_list(data, live=True)).routes()
    for folder, link in zip(folders, links, strict=True):
        routes.append(Mount(f"/{link.rstrip('/')}", routes=run_routes(folder)))
    return routes


def serve_report(folders: Sequence[RunFolder], port: int, on_ready: Callable[[str], None]) -> None:
    """Serve the page of a run, or the list of several runs, on this machine until a signal. Runs may be starting.

    Raises UserError if the port is in use, and for a folder without a run.
    """
    for folder in folders:
        require_run(folder)
    routes = run_routes(folders[0]) if len(folders) == 1 else list_routes(folders)
    guard = RequestGuard(routes, ServerLimits(drain_s=1.0))
    with bind(HOST, port, "--port") as listening, StopSignals() as signals:
        address = f"http://{HOST}:{listening.getsockname()[1]}/"
        signals.run(lambda: serve_http(guard, listening, lambda: on_ready(address)))
