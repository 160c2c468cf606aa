"""Connections of the HTTP server that wait: their number and their time are limited."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from marl_ray.core import connections
from marl_ray.http import server as http_server
from marl_ray.plugins.serve import team_tasks
from marl_ray.sandbox import count_tests
from tests.plugins.serve.canned_team import canned_team

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
def test_waiting_connections_make_room_for_new_ones(first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "connection_limit", lambda most, reserved: 16)
    with canned_team() as (address, _, _):
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


def test_other_requests_are_answered_between_the_submissions_of_many_answers() -> None:
    with canned_team() as (address, streams, _), ThreadPoolExecutor(1) as pool:
        answer = streams.stream
        submitted = list[float]()

        def submit(*arguments: Any, **settings: Any) -> Any:
            submitted.append(time.monotonic())
            time.sleep(0.005)  # a call of an actor blocks the event loop about as long
            return answer(*arguments, **settings)

        streams.stream = submit  # type: ignore[method-assign, assignment]
        body = {"model": "agent_0", "prompt": ["x"] * 8, "n": 16, "max_tokens": 4}
        large = pool.submit(httpx.post, f"{address}/v1/completions", json=body, timeout=60)
        replied = list[float]()
        with httpx.Client() as client:
            while not large.done():
                assert client.get(f"{address}/health", timeout=60).status_code == 200
                replied.append(time.monotonic())
        assert large.result().status_code == 200
        assert len(submitted) == 128
        assert any(submitted[0] < when < submitted[-1] for when in replied)


def test_other_requests_are_answered_while_tests_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    proceed = threading.Event()
    started = threading.Event()
    parsed = list[Any]()

    def parse(tests: Any, entry_point: str) -> int:
        parsed.append(entry_point)
        started.set()
        assert proceed.wait(60)
        return count_tests(tests, entry_point)

    monkeypatch.setattr(team_tasks, "count_tests", parse)
    with canned_team() as (address, _, _), ThreadPoolExecutor(1) as pool:
        body = {"model": "team", "prompt": ["def f(n):\n"] * 4, "marl_ray": {"tests": ["assert f(2) == 4"]}}
        waiting = pool.submit(httpx.post, f"{address}/v1/completions", json=body, timeout=60)
        assert started.wait(60)
        assert httpx.get(f"{address}/health", timeout=60).status_code == 200
        proceed.set()
        assert waiting.result().status_code == 200
        assert parsed == ["f"], "equal tests are parsed once"


def test_a_request_for_too_many_answers_is_refused_before_the_first() -> None:
    with canned_team(requests=100) as (address, streams, _):
        body = {"model": "agent_0", "prompt": ["x"] * 64, "n": 16}
        reply = httpx.post(f"{address}/v1/completions", json=body, timeout=60)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "n")
        assert "1024 answers, more than 100 (--max-requests)" in reply.text
        assert streams.calls == []
