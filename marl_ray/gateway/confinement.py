"""Options of the launcher of a command, and a check whether a confinement can be enforced on this machine."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from marl_ray.config.gateway_section import GatewayConfig
from marl_ray.core.errors import UserError

LAUNCHER = (sys.executable, "-I", "-S", str(Path(__file__).parent / "launcher.py"))
"""Command of the launcher, before its options."""
CHECK_S = 60.0
CONNECTIONS = 16
"""Connections of an episode at the same time; further ones wait."""
MAX_CONNECTIONS = 256
"""Connections of a service, which plays many episodes: the launcher needs two threads for each."""


def launcher_options(
    config: GatewayConfig, words: Sequence[str], folder: str, files: Sequence[str], base_url: str
) -> str:
    """Return the options of the launcher for an episode in `folder`. The command may read `files` in it, which are
    created if they are missing, and write the last."""
    memory_mb = config.memory_mb or 0
    if config.sandbox == "none":
        return json.dumps({"memory_mb": memory_mb, "confinement": None})
    for name in files:
        path = Path(folder, name)
        path.touch()
        path.chmod(0o666)  # the folder is private; a command of root runs as another user
    confinement = {
        "folder": os.path.realpath(folder),
        "files": files,
        "readable": sorted({*map(os.path.abspath, config.readable), *program_files(words[0])}),
        "port": urlsplit(base_url).port,
        "connections": min(CONNECTIONS * config.concurrency, MAX_CONNECTIONS) if config.service else CONNECTIONS,
        "processes": config.max_processes,
    }
    return json.dumps({"memory_mb": memory_mb, "confinement": confinement})


def program_files(word: str) -> Iterator[str]:
    """Yield the files that a program needs to start: the program itself, and the library of a Python interpreter with
    its virtual environment. A program that is not found needs none."""
    found = shutil.which(word)
    if found is None:
        return
    found, real = os.path.abspath(found), os.path.realpath(found)
    yield found
    if os.path.basename(real).startswith("python"):
        yield os.path.dirname(os.path.dirname(real))
        environment = os.path.dirname(os.path.dirname(found))
        if os.path.exists(os.path.join(environment, "pyvenv.cfg")):
            yield environment


def check_confinement(config: GatewayConfig, words: Sequence[str]) -> None:
    """Run a program without effects in the confinement. Raises UserError if a part of it cannot be enforced here."""
    if config.memory_mb is None:
        raise UserError("gateway.sandbox namespaces needs a limit of memory: set gateway.memory_mb, such as 2048")
    for path in config.readable:
        if not os.path.exists(path):
            raise UserError(f"gateway.readable: {path} does not exist")
        if os.geteuid() == 0 and not os.stat(path).st_mode & stat.S_IROTH:
            raise UserError(
                f"gateway.readable: {os.path.abspath(path)} is closed to other users, and root starts a command in "
                "namespaces as another user: chmod o+rX it, or train as an ordinary user"
            )
    with tempfile.TemporaryDirectory(prefix="marl_ray_check_") as folder:
        options = launcher_options(config, words, folder, (), "http://127.0.0.1:1")
        command = [*LAUNCHER, options, str(os.getpid()), "/bin/true"]
        done = subprocess.run(
            command, env={}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CHECK_S, check=False
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise UserError(
            f"gateway.sandbox namespaces is not available here ({lines[-1][:300]}): allow user namespaces "
            "(docs/how-to/sandbox.md), or set gateway.sandbox to none for a trusted program"
        )
