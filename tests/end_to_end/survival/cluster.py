"""A cluster of several nodes on this machine: a raylet each, all on localhost, with Ray's own test tool.

Nodes notice each other's death within two seconds (`HEALTH`); a production cluster would wait longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

HEALTH = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_AUTH_MODE": "disabled",
}
NODE_CPUS = 3.0


class Nodes:
    """A head without room for actors, and `count` worker nodes."""

    def __init__(self, count: int) -> None:
        from ray.cluster_utils import Cluster

        self.cluster: Any = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 10**8},
        )
        self.workers: list[Any] = []
        for _ in range(count):
            self.add()

    @property
    def address(self) -> str:
        return self.cluster.address

    def add(self) -> None:
        """One more node."""
        self.workers.append(
            self.cluster.add_node(num_cpus=NODE_CPUS, include_dashboard=False, object_store_memory=10**8, wait=False)
        )

    def kill(self, index: int) -> list[int]:
        """SIGKILL for a worker node, as if its machine lost power: the raylet and all below it. Returns their ids."""
        node = self.workers.pop(index)
        (raylet,) = node.all_processes["raylet"]
        root = psutil.Process(raylet.process.pid)
        victims = [root, *root.children(recursive=True)]
        for victim in victims:
            with suppress(psutil.NoSuchProcess):  # a parent's end may be its own
                victim.kill()
        self.cluster.worker_nodes.discard(node)
        return [victim.pid for victim in victims]

    def of_head(self, name: str) -> psutil.Process:
        """A process of Ray's own on the head node: `raylet`, `gcs_server`."""
        (found,) = self.cluster.head_node.all_processes[name]
        return psutil.Process(found.process.pid)

    def processes(self) -> list[psutil.Process]:
        """Everything that runs on the worker nodes."""
        found = []
        for node in self.workers:
            (raylet,) = node.all_processes["raylet"]
            found += psutil.Process(raylet.process.pid).children(recursive=True)
        return found


@contextmanager
def nodes(count: int) -> Iterator[Nodes]:
    """A cluster, ended afterwards; the variables that its nodes and drivers need are set meanwhile."""
    before = {name: os.environ.get(name) for name in HEALTH}
    os.environ.update(HEALTH)
    made = Nodes(count)
    try:
        yield made
    finally:
        made.cluster.shutdown()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
