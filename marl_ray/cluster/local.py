"""The Ray of a run: the cluster that RAY_ADDRESS names, or one of our own on this machine."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from typing import Any

import ray

from marl_ray.cluster import ray_private
from marl_ray.core.errors import UserError
from marl_ray.core.words import counted

JOIN_S = 20.0
"""For a first answer of a cluster's address."""


def cluster_address() -> str | None:
    """Where the cluster is that this process is to use; None: it starts its own."""
    return os.environ.get("RAY_ADDRESS") or None


def connect(verbose: bool) -> str:
    """Join the cluster named by RAY_ADDRESS, or start one on this machine that listens on localhost only.

    Returns a line that says which. Raises UserError where the address leads to no cluster.
    """
    address = cluster_address()
    options: dict[str, Any] = {
        "log_to_driver": verbose,
        "logging_level": logging.INFO if verbose else logging.ERROR,
    }
    if address:
        try:
            _knock(address)
            ray.init(address=address, **options)
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(f"no Ray cluster can be joined at RAY_ADDRESS {address}: {error}") from None
        return f"Ray cluster at {address} with {counted(len(ray.nodes()), 'node')}"
    # Ray protects a local cluster by a token. Without one it would leave a new one in ~/.ray, which then binds every
    # cluster that this user starts later.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray_private.init_on_localhost(include_dashboard=False, **options)
    return f"local Ray with {ray.cluster_resources().get('CPU', 0):g} CPUs"


def _knock(address: str) -> None:
    """Somebody listens there. Ray itself would wait for minutes. Raises OSError."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host, int(port)), timeout=JOIN_S).close()


def disconnect() -> None:
    """Leave the cluster; a Ray of our own ends, with all its processes."""
    ray.shutdown()


def local_gpus() -> int:
    """The GPUs of this machine, without a connection to Ray."""
    return ray_private.gpus_here()
