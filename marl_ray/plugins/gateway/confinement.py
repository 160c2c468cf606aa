"""Options of the launcher of a command, and a check whether a confinement can be enforced on this machine."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from marl_ray.core.errors import UserError
from marl_ray.plugins.gateway.options import GatewayConfig

logger = logging.getLogger(__name__)
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
    connections = CONNECTIONS
    if config.service:
        connections = min(CONNECTIONS * config.concurrency, MAX_CONNECTIONS)
    confinement = {
        "folder": os.path.realpath(folder),
        "files": files,
        "readable": sorted({*readable_paths(config, words), *program_files(words[0])}),
        "port": urlsplit(base_url).port,
        "connections": connections,
        "processes": config.max_processes,
    }
    return json.dumps({"memory_mb": memory_mb, "confinement": confinement})


SCRIPTS = (".py", ".sh", ".js", ".mjs")
"""Ends of the names of programs that an interpreter runs."""


def readable_paths(config: GatewayConfig, words: Sequence[str]) -> list[str]:
    """Return the paths besides the interpreter and the system that a command may read."""
    if config.readable:
        return list(map(os.path.abspath, config.readable))
    return sorted(own_paths(words))


def own_paths(words: Sequence[str]) -> Iterator[str]:
    """Yield the folder of a command's program, and the other files and folders that the command names. The program is
    the module after `-m`, the first script, the first file after a Python interpreter, or the command itself.

    A folder that contains the working folder or the home folder may have secrets, so a program in it is shown alone.
    """
    package = None
    named = []
    for before, word in itertools.pairwise(words):
        if before == "-m":
            package = package or word.partition(".")[0]
        elif os.path.exists(word):
            named.append(word)
    programs = []
    if package is not None:
        programs = list(filter(os.path.exists, (package, f"{package}.py")))
    else:
        is_python = os.path.basename(words[0]).startswith("python")
        for path in named:
            if os.path.isfile(path) and (is_python or path.endswith(SCRIPTS)):
                programs = [path]
                break
        if not programs and not is_python and os.path.isfile(words[0]):
            programs = [words[0]]
    working = os.path.realpath(os.getcwd())
    home = os.path.realpath(os.path.expanduser("~"))
    for given in dict.fromkeys((*programs, *named)):
        path = os.path.abspath(given)
        shown = path
        if given in programs and os.path.isfile(path):
            shown = os.path.dirname(path)  # a program imports its neighbours
        real = os.path.realpath(shown)
        if real not in (os.path.commonpath([real, working]), os.path.commonpath([real, home])):
            yield shown
        elif os.path.isfile(path):
            yield path


def program_files(word: str) -> Iterator[str]:
    """Yield the files that a program needs to start: the program itself, and the library of a Python interpreter with
    its virtual environment. A program that is not found needs none."""
    found = shutil.which(word)
    if found is None:
        return
    found = os.path.abspath(found)
    real = os.path.realpath(found)  # the interpreter of a virtual environment is a link
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
    paths = readable_paths(config, words)
    logger.info(f"a command in namespaces reads {', '.join(paths) or 'no files of yours'} (gateway.readable)")
    for path in paths:
        if not os.path.exists(path):
            raise UserError(f"gateway.readable: {path} does not exist")
        if os.geteuid() == 0 and not os.stat(path).st_mode & stat.S_IROTH:
            raise UserError(
                f"gateway.readable: {os.path.abspath(path)} is closed to other users, and root starts a command in "
                "namespaces as another user: chmod o+rX it, or train as an ordinary user"
            )
    with tempfile.TemporaryDirectory(prefix="marl_ray_check_") as folder:
        # Nothing connects to this port.
        options = launcher_options(config, words, folder, (), "http://127.0.0.1:1")
        command = [*LAUNCHER, options, str(os.getpid()), "/bin/true"]
        done = subprocess.run(
            command,
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_S,
            check=False,
            encoding="utf-8",
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise UserError(
            f"gateway.sandbox namespaces is not available here ({lines[-1][:300]}): allow user namespaces "
            "(docs/how-to/sandbox.md), or set gateway.sandbox to none for a trusted program"
        )
