"""What a run leaves in temporary folders: nothing, once it has ended in order.

Ray ends actors without a word, so that libraries cannot remove their own files, as vLLM's sockets and rendezvous files.
They go to the folder that Ray has on each node for this cluster (`/tmp/ray/session_*`), beside Ray's logs. A Ray of our
own loses it at the end, where the run failed but for Ray's logs, which may say why. A driver that is killed leaves it,
and on a cluster it is there as long as the cluster's logs are.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import ray

OURS = "tmp"
"""The temporary folder in Ray's."""
SOCKET_NAME = 40
SOCKET_PATH = 107
"""Bytes of the longest name that a library gives a socket, and of the longest path that the system takes."""


def session_folder() -> Path:
    """Ray's own, on this node."""
    context = ray.get_runtime_context()
    return Path(context.get_temp_dir(), context.get_session_name())


def use_session_folder() -> None:
    """From now on what this process and its children call the temporary folder is one in Ray's."""
    before, folder = tempfile.gettempdir(), session_folder() / OURS
    if len(os.fsencode(folder)) + SOCKET_NAME > SOCKET_PATH:
        return
    folder.mkdir(exist_ok=True)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{before}/torchinductor_{os.getuid()}")  # a cache, not litter
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def remove_session(folder: Path, keep_logs: bool) -> None:
    """That of a Ray of our own, which has ended; or what is in it beside Ray's logs."""
    if keep_logs:
        shutil.rmtree(folder / OURS, ignore_errors=True)
        return
    shutil.rmtree(folder, ignore_errors=True)
    latest = folder.with_name("session_latest")
    if latest.is_symlink() and not latest.exists():
        latest.unlink(missing_ok=True)
