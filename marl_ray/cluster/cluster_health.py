"""Losing Ray's own processes: noticed, and named in one line.

Ray gives up on a head that does not answer after 60 s and then ends this process, in paragraphs. We give up before.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import ray
from ray.exceptions import RayError

from marl_ray.cluster import ray_private
from marl_ray.core.errors import UserError

PATIENCE_S = 3.0
"""For an answer of a process that has answered before."""
LOOK_EVERY_S = 5.0
GIVE_UP_S = 35.0
"""A head that is restarted may take so long."""


class ClusterLost(UserError):
    """A process of Ray's own is gone, and the run with it."""


@contextmanager
def watch_head(lost: Callable[[str], None]) -> Iterator[None]:
    """Call `lost`, with a line that names it, when the head of the cluster does not answer for long, or Ray's process
    on this node is gone, without which no actor answers and none can be started.

    It is called in a thread: whoever asks Ray for anything then waits for the head too, and may never come back.
    """
    address, over = ray.get_runtime_context().gcs_address, threading.Event()
    here = ray.get_runtime_context().get_node_id()
    own = next(node for node in ray.nodes() if node["NodeID"] == here)

    def watch() -> None:
        answered = time.monotonic()
        while not over.wait(LOOK_EVERY_S):
            if _refuses(own):
                lost(_gone(own))
                return
            if _answers(address):
                answered = time.monotonic()
            elif time.monotonic() - answered > GIVE_UP_S:
                lost(f"the head of the Ray cluster at {address} (gcs_server) has not answered for {GIVE_UP_S:g} s")
                return

    thread = threading.Thread(target=watch, name="watch of Ray's head", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S + LOOK_EVERY_S)


def find_lost_node() -> str | None:
    """A line that names a node whose raylet is gone, where the head has not noticed it yet. Takes seconds at most."""
    if not _answers(ray.get_runtime_context().gcs_address):
        return None
    for node in ray.nodes():
        try:
            _connect(node)
        except OSError:
            return _gone(node)
    return None


def _gone(node: dict[str, Any]) -> str:
    return f"Ray's process on node {node['NodeManagerAddress']} (raylet) is gone"


def _connect(node: dict[str, Any]) -> None:
    """To the node's raylet, which Ray calls its node manager. Raises OSError."""
    socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), timeout=PATIENCE_S).close()


def _refuses(node: dict[str, Any]) -> bool:
    """Nobody listens where the node's raylet did. One that is only slow listens."""
    try:
        _connect(node)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _answers(address: str) -> bool:
    try:
        ray_private.ask_head(address, PATIENCE_S)
    except (grpc.RpcError, OSError, RayError):
        return False
    return True
