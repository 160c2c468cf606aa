"""Joining a cluster that is not there."""

from __future__ import annotations

import socket
import time

import pytest

from marl_ray.cluster import local
from marl_ray.cluster.local import connect
from marl_ray.core.errors import UserError


def test_an_address_where_nobody_listens_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for name in (address, f"ray://{address}"):
            monkeypatch.setenv("RAY_ADDRESS", name)
            with pytest.raises(UserError, match=rf"^no Ray cluster can be joined at RAY_ADDRESS {name}: .*refused"):
                connect(verbose=False)


def test_what_is_no_ray_head_is_one_line_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would try for two minutes."""
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setattr(local, "JOIN_S", 2.0)
    with socket.socket() as silent:
        silent.bind((socket.gethostbyname(socket.gethostname()), 0))
        silent.listen()
        monkeypatch.setenv("RAY_ADDRESS", "{}:{}".format(*silent.getsockname()))
        begun = time.monotonic()
        with pytest.raises(
            UserError, match=r"^no Ray cluster can be joined at RAY_ADDRESS [\d.:]+: (no answer|nobody)"
        ):
            connect(verbose=False)
        assert time.monotonic() - begun < 25
