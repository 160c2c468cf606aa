"""The search for a node whose loss Ray has not noticed."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from marl_ray.cluster import cluster_health


@pytest.mark.parametrize(
    ("alive", "found"), [(True, "Ray's process on node 127.0.0.1 (raylet) is gone"), (False, None)]
)
def test_a_node_that_was_lost_earlier_is_not_blamed(
    alive: bool, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    # A fake of Ray's list: a cluster of several nodes, one of them lost, does not fit into a test.
    lost = {"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port, "Alive": alive}
    context = SimpleNamespace(gcs_address="127.0.0.1:1")
    monkeypatch.setattr(
        cluster_health, "ray", SimpleNamespace(nodes=lambda: [lost], get_runtime_context=lambda: context)
    )
    monkeypatch.setattr(cluster_health, "_head_answers", lambda address: True)
    assert cluster_health.find_lost_node() == found
