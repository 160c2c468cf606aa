"""A Ray cluster of several nodes on this machine, made with Ray's own test tool: one raylet per node, all on localhost.

Lost nodes are detected within two seconds (`HEALTH`); a production cluster waits longer.
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


class RayCluster:
    """A head without resources for actors, and `count` worker nodes."""

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
        """Add a worker node."""
        self.workers.append(
            self.cluster.add_node(num_cpus=NODE_CPUS, include_dashboard=False, object_store_memory=10**8, wait=False)
        )

    def kill(self, index: int) -> list[int]:
        """Kill the raylet of a worker node and all its descendants, as in a power loss. Returns their process ids."""
        node = self.workers.pop(index)
        (raylet,) = node.all_processes["raylet"]
        root = psutil.Process(raylet.process.pid)
        victims = [root, *root.children(recursive=True)]
        for victim in victims:
            with suppress(psutil.NoSuchProcess):  # it may end with its parent
                victim.kill()
        self.cluster.worker_nodes.discard(node)
        return [victim.pid for victim in victims]

    def head_process(self, name: str) -> psutil.Process:
        """Return a process of Ray on the head node: `raylet` or `gcs_server`."""
        (info,) = self.cluster.head_node.all_processes[name]
        return psutil.Process(info.process.pid)

    def processes(self) -> list[psutil.Process]:
        """Return all processes on the worker nodes."""
        processes = []
        for node in self.workers:
            (raylet,) = node.all_processes["raylet"]
            processes += psutil.Process(raylet.process.pid).children(recursive=True)
        return processes


@contextmanager
def ray_cluster(count: int) -> Iterator[RayCluster]:
    """Run a cluster of `count` worker nodes, and set the environment variables of its nodes and drivers meanwhile."""
    before = {name: os.environ.get(name) for name in HEALTH}
    os.environ.update(HEALTH)
    cluster = RayCluster(count)
    try:
        yield cluster
    finally:
        cluster.cluster.shutdown()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
