"""All uses of Ray's private API: `ray._private`, arguments that begin with an underscore, undocumented variables.

Written for RAY_VERSION, the only version that setup.py allows. A test compares both with the installed Ray.
Review these functions before changing the version.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray._private import accelerators, node, ray_constants, services, utils, worker
from ray._private.grpc_utils import init_grpc_channel
from ray._private.state import available_resources_per_node
from ray.core.generated.gcs_service_pb2 import GetClusterIdRequest  # type: ignore[attr-defined]
from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub

from marl_ray.core.stop_signals import STOP_SIGNALS

logger = logging.getLogger(__name__)
RAY_VERSION = "2.60.0"
SYSTEM_CONFIG = {"task_events_report_interval_ms": 0, "prestart_worker_first_driver": False}
"""Settings of a local Ray instance. Zero turns the collection of task events off. Workers that Ray starts in advance
would stay idle, because every actor has an environment of its own."""
STARTS = 3
"""Attempts to start a local Ray instance. On a busy machine the first may fail: the raylet ends if its agent takes more
than about 15 s to start, and Ray gives up after 30 s. A later attempt finds Ray's files in memory."""
START_TIMEOUT = "The current node timed out during startup"
"""Beginning of the message of a plain `Exception` with which Ray gives up. Ray raises no subclass and sets no value, so
the message is the only mark of this failure. A test compares it with Ray's source."""
CRASH_LOG_LINES = ("Raylet is terminated", "has been marked dead", "A worker died or was killed while executing")
"""Parts of the log lines that Ray prints after the crash of a raylet or an actor's process."""


def init_on_localhost(**options: Any) -> None:
    """Call `ray.init` for a local Ray instance whose servers listen on 127.0.0.1 only.

    Ray binds to every interface unless it believes that clusters are disabled, as on macOS. Its helper processes read
    the environment variable; this process has read it already. Unused helper processes are not started: the autoscaler,
    the dashboard server (which runs even without a dashboard) and, without `log_to_driver`, the log monitor. The agent
    that remains starts without its web server.
    Events of tasks are not collected: their store in the GCS would grow by megabytes per minute in a server.
    The processes have a session of their own, so that a closed terminal, or a signal to this process' group, stops the
    run in order instead of taking Ray away from it.

    A start that fails is repeated. Raises TimeoutError if Ray is not up after STARTS attempts, and ImportError if an
    agent of Ray cannot be imported.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    unused = ["start_monitor", "start_api_server"]
    if not options.get("log_to_driver", True):
        unused.append("start_log_monitor")
    for attempt in range(1, STARTS + 1):
        try:
            with _without_helpers(unused) as nodes, _in_own_session():
                ray.init(address="local", _node_ip_address="127.0.0.1", _system_config=SYSTEM_CONFIG, **options)
                return
        except Exception as error:
            if START_TIMEOUT not in str(error):
                raise
            for started in nodes:
                started.kill_all_processes(check_alive=False, allow_graceful=False)
                _raise_import_error(Path(started.get_logs_dir_path()))
            if attempt < STARTS:
                logger.warning("Ray was not up after 30 s: starting it again")
    raise TimeoutError(f"Ray was not up after {STARTS} attempts of 30 s each")


def _raise_import_error(logs: Path) -> None:
    """Raise ImportError if the log of an agent ends with one. The raylet ends with its agents."""
    for log in sorted(logs.glob("*agent.log")):
        last = log.read_text(errors="replace", encoding="utf-8").rstrip().rpartition("\n")[2]
        if last.startswith(("ImportError", "ModuleNotFoundError")):
            raise ImportError(f"{last} ({log})")


@contextmanager
def _without_helpers(names: Sequence[str]) -> Iterator[list[Any]]:
    """Disable the `Node` methods that start these helper processes. Yield a list of the node that starts meanwhile."""
    nodes: list[Any] = []
    original = {name: getattr(node.Node, name) for name in names}
    dashboard_error = utils.get_dashboard_dependency_error

    def skip(self: Any, **options: Any) -> None:
        self._webui_url = ""  # set by the start of the dashboard otherwise
        nodes[:] = [self]

    for name in names:
        setattr(node.Node, name, skip)
    utils.get_dashboard_dependency_error = lambda: ImportError("marl_ray does not use the dashboard")
    try:
        yield nodes
    finally:
        utils.get_dashboard_dependency_error = dashboard_error
        for name, method in original.items():
            setattr(node.Node, name, method)


@contextmanager
def _in_own_session() -> Iterator[None]:
    original = services.ConsolePopen
    services.ConsolePopen = partial(original, start_new_session=True)  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        services.ConsolePopen = original  # type: ignore[misc]


@contextmanager
def defer_signals() -> Iterator[None]:
    """Deliver STOP_SIGNALS that arrive during `ray.init` to their handlers afterwards.

    An interrupted start of Ray leaves processes that end late. Ray also installs its own SIGTERM handlers: in Python
    and, on connecting, in C++ below Python's. A second signal kills this process and a local Ray instance with it.
    Outside the main thread, where Python allows no handlers, only Ray's Python handler is left out.
    """
    set_handler = utils.set_sigterm_handler
    connect = worker.connect
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for stop_signal in STOP_SIGNALS:
            handler = signal.getsignal(stop_signal)
            if callable(handler):  # neither ignored nor the default
                handlers[stop_signal] = handler
    received: list[int] = []

    def record(number: int, frame: object) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    def connect_with_signals_blocked(*args: Any, **kwargs: Any) -> Any:
        signal.pthread_sigmask(signal.SIG_BLOCK, handlers)
        try:
            return connect(*args, **kwargs)
        finally:
            for number in handlers:
                signal.signal(number, signal.getsignal(number))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)

    utils.set_sigterm_handler = lambda handler: None
    worker.connect = connect_with_signals_blocked
    for number in handlers:
        signal.signal(number, record)
    try:
        yield
    finally:
        utils.set_sigterm_handler = set_handler
        worker.connect = connect
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def silence_crash_logs() -> None:
    """Stop drivers from printing log lines about crashes. marl_ray's own messages name the lost actors or node."""
    print_original = worker.print_to_stdstream
    if print_original.__module__ != worker.__name__:
        return  # already replaced

    def print_filtered(data: dict[str, Any], ignore_prefix: bool) -> None:
        is_crash_log = any(text in line for line in data["lines"] for text in CRASH_LOG_LINES)
        if data.get("pid") != "raylet" or not is_crash_log:
            print_original(data, ignore_prefix)

    worker.print_to_stdstream = print_filtered


def ask_head(address: str, deadline_s: float) -> None:
    """Return if a cluster's head (its GCS) answers at `host:port` or `auto`, and accepts our token.

    `ray.init` would retry for minutes and ignore interrupts. Raises grpc.RpcError with a code, AuthenticationError for
    a missing token, ConnectionError and ValueError.
    """
    host_and_port = services.canonicalize_bootstrap_address_or_die(address)
    # As Ray does itself: a proxy of the machine does not reach the cluster.
    direct = [("grpc.enable_http_proxy", 0)]
    with init_grpc_channel(host_and_port, options=direct) as channel:
        NodeInfoGcsServiceStub(channel).GetClusterId(GetClusterIdRequest(), timeout=deadline_s)


def free_resources() -> list[dict[str, float]]:
    """Return the free resources per live node under Ray's names (`ray.available_resources` returns only their sum)."""
    free = available_resources_per_node()
    alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    return [dict(free.get(node_id, {})) for node_id in alive]


def visible_gpu_count() -> int:
    """Return the number of GPUs that Ray would offer on this machine, without starting Ray."""
    manager: Any = accelerators.get_accelerator_manager_for_resource("GPU")
    count = int(manager.get_current_node_num_accelerators())
    visible = manager.get_current_process_visible_accelerator_ids()
    if visible is None:
        return count
    return min(count, len(visible))


def visible_gpu_type() -> str:
    """Return Ray's name of this machine's first GPU (`H100`); empty if unknown."""
    manager: Any = accelerators.get_accelerator_manager_for_resource("GPU")
    return manager.get_current_node_accelerator_type() or ""
