"""A small HTTP server on threads of its own, for pages that are made on request: the live report, and metrics."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from marl_ray.core.connections import BACKLOG, WRITE_S, bind, connection_limit

MAX_CONNECTIONS = 64
"""Connections, and so threads, of a server."""


@dataclass(frozen=True, slots=True)
class Page:
    """A reply: its content type and its body; or a `status` other than 200, and the reason as body."""

    kind: str
    body: bytes
    status: int = 200


PageMaker = Callable[[str, Message], Page]
"""Returns the page of a path for the headers of a request."""


class PageServer(ThreadingHTTPServer):
    """Answers GET requests. Every connection has one request and a thread. Raises UserError, which names `settings`, if
    the address cannot be used."""

    daemon_threads = True

    def __init__(self, host: str, port: int, make_page: PageMaker, settings: str) -> None:
        super().__init__((host, port), _Handler, bind_and_activate=False)
        self.make_page = make_page
        self.socket.close()
        self.listener = bind(host, port, settings)
        self.listener.limit = connection_limit(MAX_CONNECTIONS)
        self.listener.listen(BACKLOG)
        self.socket = self.listener
        self.server_address = self.listener.getsockname()
        self.server_port = self.server_address[1]

    def service_actions(self) -> None:
        """End overdue connections; `serve_forever` calls this twice per second."""
        self.listener.end_overdue()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error of a page, but not the error of a connection that has ended."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = WRITE_S

    def parse_request(self) -> bool:
        has_headers = super().parse_request()
        self.request.begin_request()
        return has_headers

    def do_GET(self) -> None:
        page = self.server.make_page(self.path, self.headers)
        if page.status != 200:
            self.send_error(page.status, explain=page.body.decode())  # the status line cannot have every letter
            return
        self.send_response(200)
        self.send_header("Content-Type", page.kind)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(page.body)

    def log_message(self, *arguments: object) -> None:
        pass
