"""Connections of the HTTP server that wait: their number and their time are limited."""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

from marl_ray.core import connections
from marl_ray.serving import http_server
from tests.serving.canned_team import canned_team

REQUEST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def connect(address: str) -> socket.socket:
    where = urlsplit(address)
    return socket.create_connection((where.hostname, where.port), timeout=30)


def is_open(connection: socket.socket) -> bool:
    """Return whether the server has not ended a connection, after all that it has sent."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
        return False
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def seconds_open(connection: socket.socket, data: bytes, pause_s: float = 0.0) -> float:
    """Send data again and again, and return the seconds until the server ends the connection, at most 30."""
    begin = time.monotonic()
    try:
        while time.monotonic() < begin + 30:
            connection.sendall(data)
            time.sleep(pause_s)
    except ConnectionError:
        pass
    return time.monotonic() - begin


@pytest.mark.parametrize("first", [b"", REQUEST[:-2], REQUEST])
def test_waiting_connections_make_room_for_new_ones(first: bytes) -> None:
    with canned_team(requests=8) as (address, _, _):
        waiting = []
        for _ in range(100):
            connection = connect(address)
            connection.sendall(first)
            if first == REQUEST:
                connection.recv(1 << 16)
            waiting.append(connection)
        assert httpx.get(f"{address}/health").status_code == 200
        open_ones = [connection for connection in waiting if is_open(connection)]
        assert 0 < len(open_ones) <= 16
        assert open_ones == waiting[-len(open_ones) :]
        for connection in waiting:
            connection.close()


@pytest.mark.parametrize("requests_before", [0, 1])
def test_slow_headers_end_a_connection(requests_before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_S", 0.3)
    monkeypatch.setattr(http_server, "HEADER_S", 0.3)
    monkeypatch.setattr(http_server, "CHECK_S", 0.05)
    with canned_team() as (address, _, _), connect(address) as slow:
        for _ in range(requests_before):
            slow.sendall(REQUEST)
            assert slow.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
            time.sleep(0.5)  # an idle connection is kept
        slow.sendall(b"GET /health HTTP/1.1\r\n")
        assert seconds_open(slow, b"X-A: b\r\n", pause_s=0.05) < 5


def test_a_client_that_does_not_read_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "WRITE_S", 0.3)
    monkeypatch.setattr(http_server, "CHECK_S", 0.05)
    with canned_team() as (address, _, _), connect(address) as deaf:
        assert seconds_open(deaf, REQUEST.replace(b"/health", b"/") * 100) < 20
