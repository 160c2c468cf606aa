"""Servers with a bound of connections below the limit of open files, and deadlines of waiting connections."""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from marl_ray.core import connections
from marl_ray.core.connections import FILES, MIN_CONNECTIONS, connection_limit, raise_file_limit
from marl_ray.core.errors import UserError
from marl_ray.http import server as http_server
from marl_ray.http.page_server import PageServer
from marl_ray.http.request_guard import RequestGuard, ServerLimits

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class SlowPages:
    """Pages that are made as soon as `proceed` is set."""

    def __init__(self) -> None:
        self.proceed = threading.Event()
        self.proceed.set()

    def make(self, request: Request) -> Response:
        assert self.proceed.wait(60)
        return PlainTextResponse("page")


@contextmanager
def serving(pages: SlowPages) -> Iterator[PageServer]:
    server = PageServer(RequestGuard([Route("/", pages.make)], ServerLimits(requests=1)), "127.0.0.1", 0, "--port")
    try:
        yield server
    finally:
        pages.proceed.set()
        server.close()


def connect(server: PageServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def reply(connection: socket.socket, request: bytes = REQUEST) -> bytes:
    """Send a request, and return all that the server sends until it closes the connection."""
    received = b""
    try:
        connection.sendall(request)
        while part := connection.recv(1 << 16):
            received += part
    except ConnectionError:  # the server has closed the connection before the request
        pass
    connection.close()
    return received


def test_the_soft_limit_of_files_is_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    wanted = min(hard, FILES) if hard != resource.RLIM_INFINITY else FILES
    assert raise_file_limit() == raise_file_limit() == wanted
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, hard)


def test_a_server_without_room_says_which_limit_to_raise() -> None:
    assert connection_limit(100) == 100
    with pytest.raises(UserError, match=r"ulimit -n \d+"):
        connection_limit(100, reserved=raise_file_limit())


def test_idle_connections_make_room_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS", MIN_CONNECTIONS)
    with serving(SlowPages()) as server:
        idle = [connect(server) for _ in range(5 * MIN_CONNECTIONS)]
        assert reply(connect(server)).endswith(b"page")
        assert len(server.listener.connections) <= MIN_CONNECTIONS
        assert reply(idle[-1]).endswith(b"page")  # only the oldest ones have ended
        for connection in idle:
            connection.close()


def test_a_connection_is_refused_while_all_others_are_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS", MIN_CONNECTIONS)
    pages = SlowPages()
    with serving(pages) as server:
        pages.proceed.clear()
        busy = [connect(server) for _ in range(MIN_CONNECTIONS)]
        for connection in busy:
            connection.sendall(REQUEST)
        deadline = time.monotonic() + 30
        answered = 0
        while answered < MIN_CONNECTIONS:
            assert time.monotonic() < deadline
            time.sleep(0.01)
            answered = sum(one.waits_since is None for one in list(server.listener.connections.values()))
        assert connect(server).recv(1 << 16).startswith(b"HTTP/1.1 503 ")
        assert reply(connect(server), b"").startswith(b"HTTP/1.1 503 ")
        pages.proceed.set()
        assert all(reply(connection, b"").endswith(b"page") for connection in busy)
    assert caplog.text.count("further ones are refused") == 1


def test_slow_headers_end_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_S", 0.3)
    with serving(SlowPages()) as server, connect(server) as slow:
        begin = time.monotonic()
        try:
            slow.sendall(b"GET / HTTP/1.1\r\n")
            while time.monotonic() < begin + 30:
                slow.sendall(b"X-A: b\r\n")
                time.sleep(0.05)
        except ConnectionError:
            pass
        assert time.monotonic() - begin < 5
