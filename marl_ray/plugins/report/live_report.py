"""The report as a page on this machine that follows a run in progress (`marl-ray report --serve`).

The page asks for the version of the runs' files every few seconds, and for the new curves when the version has changed.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from email.message import Message

from marl_ray.core.errors import UserError
from marl_ray.http.page_server import Page, PageServer
from marl_ray.plugins.report.html_report import render_report
from marl_ray.storage.run_folder import RunFolder

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")


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
    """The last page, rendered again when the files have changed."""

    def __init__(self, folders: Sequence[RunFolder], episodes: int) -> None:
        self._folders, self._episodes = folders, episodes
        self._lock = threading.Lock()
        self._page: tuple[str, bytes] | None = None

    def version(self) -> bytes:
        """Return the version of the files."""
        return files_version(self._folders).encode()

    def page(self) -> bytes:
        """Return the page. Raises UserError for damaged files."""
        with self._lock:
            version = files_version(self._folders)
            if self._page is None or self._page[0] != version:
                text = render_report(self._folders, self._episodes, live=True)
                self._page = version, text.encode()
            return self._page[1]


def serve_report(folders: Sequence[RunFolder], episodes: int, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve the page on this machine until a signal. Raises UserError if the port is in use or a run is damaged."""
    report = LiveReport(folders, episodes)
    report.page()

    def make_page(path: str, headers: Message) -> Page:
        host = headers.get("host", "")
        name = host.rpartition(":")[0] or host
        content = {"/": report.page, "/version": report.version}.get(path)
        if content is None:
            return Page("", b"there is no such page", 404)
        if name not in NAMES:
            return Page("", b"this server does not serve the requested host", 421)
        try:
            body = content()
        except UserError as error:
            return Page("", str(error)[:200].encode(), 500)
        return Page("text/html; charset=utf-8" if path == "/" else "text/plain", body)

    with PageServer(HOST, port, make_page, "--port") as server:
        on_ready(f"http://{HOST}:{server.server_port}/")
        server.serve_forever()
