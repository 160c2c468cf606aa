"""All that we use of Ray without its promise. Nothing else in the package may touch `ray._private`, arguments of Ray
that begin with an underscore, or variables that Ray does not document.

Written against the Ray named here, which setup.py pins; a test compares both with the Ray that is installed. With
another one, read these functions again before the number is changed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import accelerators, node, ray_constants, services, utils, worker
from ray._private.grpc_utils import init_grpc_channel
from ray._private.state import available_resources_per_node
from ray.core.generated.gcs_service_pb2 import GetClusterIdRequest  # type: ignore[attr-defined]
from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub

RAY_VERSION = "2.60.0"
CRASH_LOG_LINES = ("Raylet is terminated", "has been marked dead", "A worker died or was killed while executing")
"""In what is printed of a raylet or an actor's process that died."""
TOO_SLOW = "timed out during startup"
"""In the text of the plain Exception that such a start ends with."""


def init_on_localhost(**options: Any) -> None:
    """`ray.init` of a Ray whose servers listen on 127.0.0.1 alone.

    Ray binds to every interface unless it believes that clusters are off, as on a Mac. Its helper processes read the
    variable; this one has read it already. Raises TimeoutError for a Ray that is not up in the 30 s it gives itself.

    It has no helper processes that nobody here asks for anything: the autoscaler's, which has nothing to scale, the
    dashboard's server, which is there without a dashboard too and is waited for, and, where no logs are to be shown,
    the one that reads them. The three took 3.5 of the 58 core seconds that the quickstart's start took.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    unused = ["start_monitor", "start_api_server"]
    if not options.get("log_to_driver", True):
        unused.append("start_log_monitor")
    try:
        with _without(unused):
            ray.init(address="local", _node_ip_address="127.0.0.1", **options)
    except Exception as error:
        if TOO_SLOW not in str(error):
            raise
        raise TimeoutError("Ray was not up after 30 s") from None


@contextmanager
def _without(helpers: Sequence[str]) -> Iterator[None]:
    """A node that is started within has not these of its helper processes."""
    own = {name: getattr(node.Node, name) for name in helpers}

    def leave_out(self: Any, **options: Any) -> None:
        self._webui_url = ""  # which the dashboard's start would set

    for name in helpers:
        setattr(node.Node, name, leave_out)
    try:
        yield
    finally:
        for name, method in own.items():
            setattr(node.Node, name, method)


@contextmanager
def defer_signals() -> Iterator[None]:
    """SIGINT and SIGTERM that come during a `ray.init` within are handled when it is done, by whoever has them.

    A Ray that is interrupted in the middle of its start leaves processes that end late. Besides, Ray sets handlers of
    its own for SIGTERM, in Python and, when it connects, in C++ below Python's. A second signal kills this process, and
    a local Ray with it.
    """
    set_handler, connect = utils.set_sigterm_handler, worker.connect
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    came: list[int] = []

    def take(number: int, frame: object) -> None:
        came.append(number)
        signal.signal(number, signal.SIG_DFL)

    def connect_with_signals_blocked(*args: Any, **kwargs: Any) -> Any:
        signal.pthread_sigmask(signal.SIG_BLOCK, handlers)
        try:
            return connect(*args, **kwargs)
        finally:
            for number in handlers:
                signal.signal(number, signal.getsignal(number))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)

    utils.set_sigterm_handler, worker.connect = lambda handler: None, connect_with_signals_blocked
    for number in handlers:
        signal.signal(number, take)
    try:
        yield
    finally:
        utils.set_sigterm_handler, worker.connect = set_handler, connect
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def silence_crash_logs() -> None:
    """A raylet that died has its log's last lines printed by every driver, and the head's guess at why, in paragraphs,
    as has an actor; our own lines name the actors that were there, or the node."""
    shown = worker.print_to_stdstream
    if shown.__module__ != worker.__name__:
        return  # done before

    def print_but_last_words(data: dict[str, Any], ignore_prefix: bool) -> None:
        of_raylet = data.get("pid") == "raylet"
        if not (of_raylet and any(words in line for line in data["lines"] for words in CRASH_LOG_LINES)):
            shown(data, ignore_prefix)

    worker.print_to_stdstream = print_but_last_words


def ask_head(address: str, deadline_s: float) -> None:
    """The head of a cluster (its GCS) answers at `host:port`, or where `auto` leads, and takes our token.

    `ray.init` would try for minutes, print each try and cannot be interrupted. Raises grpc.RpcError with a code,
    AuthenticationError for a token that should be there and is not, ConnectionError and ValueError.
    """
    place = services.canonicalize_bootstrap_address_or_die(address)
    with init_grpc_channel(place) as channel:
        NodeInfoGcsServiceStub(channel).GetClusterId(GetClusterIdRequest(), timeout=deadline_s)


def free_resources() -> list[dict[str, float]]:
    """What each live node has free, in Ray's spelling (`ray.available_resources` has their sum only)."""
    free = available_resources_per_node()
    return [dict(free.get(each["NodeID"], {})) for each in ray.nodes() if each["Alive"]]


def visible_gpu_count() -> int:
    """The GPUs that a Ray started on this machine would offer, without starting one."""
    manager = accelerators.get_accelerator_manager_for_resource("GPU")
    assert manager is not None, "Ray knows what a GPU is"
    visible = manager.get_current_process_visible_accelerator_ids()
    count = int(manager.get_current_node_num_accelerators())
    return count if visible is None else min(count, len(visible))


def visible_gpu_type() -> str:
    """What Ray calls this machine's first GPU; empty where it knows none."""
    manager = accelerators.get_accelerator_manager_for_resource("GPU")
    assert manager is not None, "Ray knows what a GPU is"
    return manager.get_current_node_accelerator_type() or ""
