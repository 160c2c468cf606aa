"""The Ray of a run: the cluster that RAY_ADDRESS names, or one of our own on this machine."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import warnings
from typing import Any

import grpc
import ray
from ray.exceptions import AuthenticationError, RayError

from marl_ray.cluster import ray_private
from marl_ray.cluster.session_files import remove_session, session_folder
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize

JOIN_S = 20.0
"""For a first answer of a cluster's address."""
LOCAL = "local"
CLIENT = "ray://"
"""Values of RAY_ADDRESS: a Ray of our own; and how one begins that is asked through Ray's client."""
SAID = {
    grpc.StatusCode.DEADLINE_EXCEEDED: f"no answer in {JOIN_S:g} s",
    grpc.StatusCode.UNAVAILABLE: "nobody answers as a Ray head does",
    grpc.StatusCode.UNAUTHENTICATED: "it wants a token, and ours is missing or wrong: set RAY_AUTH_MODE=token and "
    "RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH",
}
"""What a head's answer means."""


def cluster_address() -> str | None:
    """Where the cluster is that this process is to use; None: it starts its own."""
    address = os.environ.get("RAY_ADDRESS")
    return None if address == LOCAL else address or None


def connect(verbose: bool) -> str:
    """Join the cluster named by RAY_ADDRESS, or start one on this machine that listens on localhost only.

    Returns a line that says which. Raises UserError where the address leads to no cluster, and where this machine is
    too busy for Ray.
    """
    address = cluster_address()
    options: dict[str, Any] = {
        "log_to_driver": verbose,
        "logging_level": logging.INFO if verbose else logging.ERROR,
    }
    if not verbose:
        ray_private.silence_crash_logs()
    if address:
        try:
            _knock(address)
            with ray_private.defer_signals(), warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # Ray's client warns of what it raises too
                ray.init(address=address, **options)
        except (OSError, RuntimeError, ValueError, RayError) as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise UserError(f"no Ray cluster can be joined at RAY_ADDRESS {address}: {reason}") from None
        return f"Ray cluster at {address} with {pluralize(len(ray.nodes()), 'node')}"
    # Ray protects a local cluster by a token. Without one it would leave a new one in ~/.ray, which then binds every
    # cluster that this user starts later.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        with ray_private.defer_signals():
            ray_private.init_on_localhost(include_dashboard=False, **options)
    except TimeoutError as error:
        load = os.getloadavg()[0]
        raise UserError(f"{error} on this machine (load {load:.0f}): try again when it has less to do") from None
    return f"local Ray with {ray.cluster_resources().get('CPU', 0):g} CPUs"


def _knock(address: str) -> None:
    """A cluster answers there. Ray itself would wait for minutes. Raises OSError, and what `ask_head` raises but for
    grpc's."""
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=JOIN_S).close()
    if address.startswith(CLIENT):
        return  # its server is asked by Ray's client, which has a deadline of 30 s
    try:
        ray_private.ask_head(address, JOIN_S)
    except grpc.RpcError as error:
        raise OSError(SAID.get(error.code(), f"what listens there is no Ray head ({error.code().name})")) from None
    except AuthenticationError:
        raise OSError(SAID[grpc.StatusCode.UNAUTHENTICATED]) from None


def disconnect(keep_logs: bool = False) -> None:
    """Leave the cluster; a Ray of our own ends, with all its processes, and all its files, but for its logs if
    they are to be kept."""
    session = session_folder() if ray.is_initialized() and not cluster_address() else None
    ray.shutdown()
    if session is not None:
        remove_session(session, keep_logs)


def local_gpus() -> int:
    """The GPUs of this machine, without a connection to Ray."""
    return ray_private.visible_gpu_count()


def local_gpu_type() -> str:
    """Ray's name of this machine's first GPU, as H100; empty where it has none, or no driver says so."""
    return ray_private.visible_gpu_type()
