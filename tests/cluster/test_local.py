"""Joining a cluster that is not there."""

from __future__ import annotations

import socket

import pytest

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
