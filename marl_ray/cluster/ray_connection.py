"""The Ray connection of a process: the cluster named by RAY_ADDRESS, or a local Ray instance and its temporary files.

Ray kills actors without running their exit handlers, so libraries such as vLLM cannot remove their own sockets and
rendezvous files. Actors therefore use a temporary folder inside Ray's session folder on their node
(`/tmp/ray/session_*`), which is removed with a local Ray instance.
"""

from __future__ import annotations

import logging
import os
import platform
import resource
import secrets
import shlex
import shutil
import socket
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import grpc
import ray
from ray.exceptions import AuthenticationError, RayError

from marl_ray.cluster import ray_private
from marl_ray.cluster.hardware import GIB, accelerator_types
from marl_ray.core.errors import UserError
from marl_ray.core.installed_versions import versions
from marl_ray.core.text import pluralize

FIRST_ANSWER_S = 20.0
"""Time limit for the first answer of a cluster."""
CLIENT = "ray://"
"""Prefix of RAY_ADDRESS for Ray Client."""
HEAD_ERRORS = {
    grpc.StatusCode.DEADLINE_EXCEEDED: f"no answer in {FIRST_ANSWER_S:g} s",
    grpc.StatusCode.UNAVAILABLE: "no Ray head answers there",
    grpc.StatusCode.UNAUTHENTICATED: "the token is missing or wrong: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, or "
    "RAY_AUTH_TOKEN_PATH",
}
MIN_OPEN_FILES = 256
"""Minimum of `ulimit -n` for a local Ray instance: a generator opens about 100 files, the raylet 30 to 100."""
TEMPORARY = "tmp"
"""Name of the temporary folder in Ray's session folder."""
SOCKET_NAME = 40
"""Maximum length in bytes of the names of sockets that libraries use."""
SOCKET_PATH = 107
"""Maximum length in bytes of the path of a socket on Linux."""


def cluster_address() -> str | None:
    """Return the address of the cluster to join, or None for a local Ray instance."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "local"):
        return None
    return address


def connect(verbose: bool) -> str:
    """Join the cluster named by RAY_ADDRESS, or start a local Ray instance that listens on localhost only.

    Returns one line for the console. Raises UserError if no cluster answers, if this machine does not admit a local
    instance, or if Ray does not start in time.
    """
    if ray.is_initialized():
        raise UserError("Ray is already initialised in this process: call ray.shutdown() first, and set RAY_ADDRESS")
    level = logging.INFO if verbose else logging.ERROR
    options: dict[str, Any] = {"log_to_driver": verbose, "logging_level": level}
    if not verbose:
        ray_private.silence_crash_logs()
    address = cluster_address()
    if address is None:
        return _start_local(options)
    try:
        _check_reachable(address)
        with ray_private.defer_signals(), warnings.catch_warnings(action="ignore", category=UserWarning):
            ray.init(address=address, **options)  # Ray Client also warns of the errors that it raises
    except (OSError, RuntimeError, ValueError, RayError) as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise UserError(f"""no Ray cluster can be joined at RAY_ADDRESS {address}: {reason}. Correct RAY_ADDRESS, or
        unset it for a Ray instance on this machine""") from None
    return f"Ray cluster at {address} with {pluralize(len(ray.nodes()), 'node')}"


def _start_local(options: dict[str, Any]) -> str:
    """Start a local Ray instance, and return one line for the console. Raises UserError."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < MIN_OPEN_FILES:
        raise UserError(f"a process may open only {limit} files here, and Ray needs {MIN_OPEN_FILES}: ulimit -n 4096")
    quoted_python = shlex.quote(sys.executable)
    if quoted_python != sys.executable:  # Ray passes the path of Python to a shell as it is
        options["runtime_env"] = {"py_executable": quoted_python}
    # Without a token, Ray writes a new one to ~/.ray, which then applies to every cluster that this user starts later.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        with ray_private.defer_signals():
            ray_private.init_on_localhost(include_dashboard=False, **options)
    except TimeoutError as error:
        load = os.getloadavg()[0]
        raise UserError(f"{error} on this machine (load {load:.0f}): try again when the load is lower") from None
    except ImportError as error:
        raise UserError(f"Ray cannot start: {error}. Install again, with the versions in constraints/") from None
    except OSError as error:
        folder = "a folder with a short path, space and the right to write"
        raise UserError(f"Ray cannot use its temporary folder: {error}: set RAY_TMPDIR to {folder}") from None
    return f"local Ray with {ray.cluster_resources().get('CPU', 0):g} CPUs"


def _check_reachable(address: str) -> None:
    """Raise OSError or another error of `ask_head` unless a cluster answers; Ray itself would wait for minutes."""
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    if host and port.isdecimal():
        bare_host = host.removeprefix("[").removesuffix("]")  # of an IPv6 address, `[::1]:6379`
        socket.create_connection((bare_host, int(port)), timeout=FIRST_ANSWER_S).close()
    if address.startswith(CLIENT):
        return  # Ray Client has its own deadline of 30 s
    try:
        ray_private.ask_head(address, FIRST_ANSWER_S)
    except grpc.RpcError as error:
        reason = HEAD_ERRORS.get(error.code(), f"the service at this address is no Ray head ({error.code().name})")
        raise OSError(reason) from None
    except AuthenticationError:
        raise OSError(HEAD_ERRORS[grpc.StatusCode.UNAUTHENTICATED]) from None


def disconnect(keep_logs: bool = False) -> None:
    """Leave the cluster. A local Ray instance ends and its files are removed, with `keep_logs` except for logs."""
    session = None
    if ray.is_initialized() and cluster_address() is None:
        session = _session_folder()
    ray.shutdown()
    if session is not None:
        remove_session(session, keep_logs)


def _session_folder() -> Path:
    context = ray.get_runtime_context()
    return Path(context.get_temp_dir(), context.get_session_name())


def use_session_folder() -> None:
    """Set the temporary folder of this process and its children to one in Ray's session folder on this node."""
    system_folder = tempfile.gettempdir()
    folder = _session_folder() / TEMPORARY
    if len(os.fsencode(folder)) + SOCKET_NAME > SOCKET_PATH:
        return  # sockets in the folder would have paths that are too long
    folder.mkdir(exist_ok=True)
    # Compiled kernels are worth keeping.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{system_folder}/torchinductor_{os.getuid()}")
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = str(folder)  # which this process has read before


def remove_session(folder: Path, keep_logs: bool) -> None:
    """Remove the session folder of a local Ray instance that has ended; with `keep_logs` only its temporary files."""
    shutil.rmtree(folder / TEMPORARY if keep_logs else folder, ignore_errors=True)
    latest = folder.with_name("session_latest")
    if latest.is_symlink() and not latest.exists():
        latest.unlink(missing_ok=True)


def describe_cluster() -> dict[str, Any]:
    """Return versions, the driver's machine and the resources of the connected cluster as plain data; memory in GiB."""
    total = ray.cluster_resources()
    return {
        "versions": versions(),
        "driver": {"system": platform.platform(), "cpus": os.cpu_count()},
        "cluster": {
            "nodes": sum(node["Alive"] for node in ray.nodes()),
            "cpus": total.get("CPU", 0.0),
            "gpus": total.get("GPU", 0.0),
            "gpu_types": sorted(accelerator_types(total)),
            "memory_gib": round(total.get("memory", 0.0) / GIB, 1),
        },
    }
