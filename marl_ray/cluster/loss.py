"""Losing Ray's own processes: noticed, and named in one line.

Ray gives up on a head that does not answer after 60 s and then ends this process, in paragraphs. We give up before.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
import ray
from ray.exceptions import RayError

from marl_ray.cluster import ray_private
from marl_ray.core.errors import UserError

R = TypeVar("R")

PATIENCE_S = 3.0
"""For an answer of a process that has answered before."""
LOOK_EVERY_S = 5.0
GIVE_UP_S = 35.0
"""A head that is restarted may take so long."""


class ClusterLost(UserError):
    """A process of Ray's own is gone, and the run with it."""


async def while_head_answers(work: Coroutine[Any, Any, R]) -> R:
    """The result of `work`. Raises ClusterLost, and cancels it, when the cluster's head does not answer for long."""
    doing, watch = asyncio.ensure_future(work), asyncio.ensure_future(_watch())
    try:
        await asyncio.wait({doing, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            watch.result()
        return await doing
    finally:
        for task in (doing, watch):
            task.cancel()
        await asyncio.gather(doing, watch, return_exceptions=True)


async def _watch() -> None:
    address = ray.get_runtime_context().gcs_address
    answered = time.monotonic()
    while time.monotonic() - answered < GIVE_UP_S:
        await asyncio.sleep(LOOK_EVERY_S)
        if await asyncio.to_thread(_answers, address):
            answered = time.monotonic()
    raise ClusterLost(f"the head of the Ray cluster at {address} (gcs_server) has not answered for {GIVE_UP_S:g} s")


def lost_node() -> str | None:
    """A line that names a node whose raylet is gone, where the head has not noticed it yet. Takes seconds at most."""
    if not _answers(ray.get_runtime_context().gcs_address):
        return None
    for node in ray.nodes():
        ip = node["NodeManagerAddress"]
        try:
            socket.create_connection((ip, node["NodeManagerPort"]), timeout=PATIENCE_S).close()
        except OSError:
            return f"Ray's process on node {ip} (raylet) is gone"
    return None


def _answers(address: str) -> bool:
    try:
        ray_private.ask_head(address, PATIENCE_S)
    except (grpc.RpcError, OSError, RayError):
        return False
    return True
