"""Detection of lost Ray processes: the head's GCS and the raylets.

Ray itself ends the driver 60 s after the head's last answer, with several paragraphs of output.
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

ANSWER_S = 3.0
"""Time limit for an answer of a process that has answered before."""
POLL_S = 5.0
"""Seconds between two checks."""
HEAD_TIMEOUT_S = 35.0
"""Time that a head may take to restart."""


class ClusterLost(UserError):
    """A process of Ray has ended, and the run with it."""


@contextmanager
def watch_head(on_lost: Callable[[str], None]) -> Iterator[None]:
    """Call `on_lost` with one line if the head does not answer for HEAD_TIMEOUT_S or this node's raylet has ended.

    The call is made in a thread: any other thread that uses Ray may block forever.
    """
    context = ray.get_runtime_context()
    address = context.gcs_address
    node_id = context.get_node_id()
    local = next(node for node in ray.nodes() if node["NodeID"] == node_id)
    stop = threading.Event()

    def watch() -> None:
        last_answer = time.monotonic()
        while not stop.wait(POLL_S):
            if _refuses_connections(local):
                on_lost(_describe_loss(local))
                return
            if _head_answers(address):
                last_answer = time.monotonic()
            elif time.monotonic() - last_answer > HEAD_TIMEOUT_S:
                head = f"the head of the Ray cluster at {address} (gcs_server)"
                on_lost(f"{head} has not answered for {HEAD_TIMEOUT_S:g} s")
                return

    thread = threading.Thread(target=watch, name="watch of Ray's head", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(ANSWER_S + POLL_S)  # it may wait for an answer just now


def find_lost_node() -> str | None:
    """Return one line that names a node whose raylet has ended, before the head notices it. Takes a few seconds."""
    if not _head_answers(ray.get_runtime_context().gcs_address):
        return None
    for node in ray.nodes():
        if not node["Alive"]:
            continue  # Ray lists nodes that were lost or removed earlier, too
        try:
            _connect_to_raylet(node)
        except OSError:
            return _describe_loss(node)
    return None


def _describe_loss(node: dict[str, Any]) -> str:
    return f"Ray's process on node {node['NodeManagerAddress']} (raylet) is gone"


def _connect_to_raylet(node: dict[str, Any]) -> None:
    socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), timeout=ANSWER_S).close()


def _refuses_connections(node: dict[str, Any]) -> bool:
    """Return whether the node's raylet no longer listens. A slow raylet still listens."""
    try:
        _connect_to_raylet(node)
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def _head_answers(address: str) -> bool:
    try:
        ray_private.ask_head(address, ANSWER_S)
    except (grpc.RpcError, OSError, RayError):
        return False
    return True
