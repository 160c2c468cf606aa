"""Parent of a command: sets limits, and kills all descendants of the command when the command or the driver ends, even
descendants that have left its process group. Imports the standard library, and for a confinement the isolated side of
the sandbox, by its path.

python launcher.py OPTIONS DRIVER_PID COMMAND ...

`OPTIONS` is a JSON object with `memory_mb` (0: no limit) and `confinement`, null or an object:

| key | value |
|---|---|
| `folder` | folder of the episode; the command sees an empty folder in its place, with the files below |
| `files` | names of files in `folder` that the command may read; it may write the last |
| `readable` | further paths that the command may read |
| `port` | port on 127.0.0.1 that the command may connect to |
| `connections` | maximum number of connections at the same time; further ones wait |
| `processes` | maximum number of processes and threads |
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import sys
import threading
from typing import Any, NoReturn

PARENT_DEATH_SIGNAL = 1
CHILD_SUBREAPER = 36
"""PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl(2)."""
PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SANDBOX = os.path.join(PACKAGE, "sandbox")
CHUNK = 1 << 16
WAITED = {signal.SIGTERM, signal.SIGCHLD}
"""Signals that all threads block and `wait` takes: a handler would not run while the main thread waits for a child and
another thread receives the signal."""
prctl = ctypes.CDLL(None).prctl


def start(memory_mb: int, command: list[str]) -> int:
    """Start the command and return its process id."""
    pid = os.fork()
    if not pid:
        prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
        run(memory_mb, command)
    return pid


def run(memory_mb: int, command: list[str]) -> NoReturn:
    """Become the command."""
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITED)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_mb:
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]} cannot be started ({error.strerror})", file=sys.stderr, flush=True)
    os._exit(127)


def start_confined(confinement: dict[str, Any], memory_mb: int, command: list[str]) -> Any:
    """Start the command in namespaces of its own, and pass its connections on to the same port of this machine."""
    sys.path.insert(0, SANDBOX)
    from inside.isolation.confined_command import ConfinedCommand  # type: ignore[import-not-found]

    confined = ConfinedCommand(confinement, memory_mb, lambda: run(memory_mb, command))
    places = threading.BoundedSemaphore(confinement["connections"])
    threading.Thread(target=accept, args=(confined.listening, confinement["port"], places), daemon=True).start()
    return confined


def accept(listening: socket.socket, port: int, places: threading.BoundedSemaphore) -> NoReturn:
    """Connect every connection of the command with the gateway."""
    while True:
        places.acquire()
        inner, _ = listening.accept()
        threading.Thread(target=connect, args=(inner, port, places), daemon=True).start()


def connect(inner: socket.socket, port: int, places: threading.BoundedSemaphore) -> None:
    """Pass on what both sides of a connection send, until the gateway has ended it."""
    with contextlib.suppress(OSError), inner, socket.create_connection(("127.0.0.1", port)) as outer:
        for side in (inner, outer):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=copy, args=(outer, inner, socket.SHUT_RDWR), daemon=True)
        back.start()
        copy(inner, outer, socket.SHUT_WR)
        back.join()
    places.release()


def copy(source: socket.socket, target: socket.socket, ends: int) -> None:
    """Pass on what `source` sends until its end, and then end these directions of `target`: a gateway that has ended a
    connection reads nothing more. If `target` has gone, nothing more is read."""
    try:
        while data := source.recv(CHUNK):
            target.sendall(data)
        target.shutdown(ends)
    except OSError:
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


def wait(first: int) -> int | None:
    """Return the wait status of the child process `first`, or None if SIGTERM comes before its end: the episode or the
    driver has ended. Reaps all children until then."""
    while signal.sigwait(WAITED) == signal.SIGCHLD:
        while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
            if reaped[0] == first:
                return reaped[1]
    return None


def kill_children() -> None:
    """Kill and reap all child processes, to which the children of killed processes are added."""
    own = str(os.getpid())
    while True:
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat", "rb") as file:
                    parent = file.read().rpartition(b")")[2].split()[1].decode()
                if parent == own:
                    os.kill(int(pid), signal.SIGKILL)
            except OSError:  # the process has ended
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def main(options: dict[str, Any], driver: int, command: list[str]) -> int:
    """Return the wait status of the command."""
    status = 1 << 8  # exit code 1, for a command that has no status of its own
    memory_mb = options["memory_mb"]
    confined = None
    # Before the first child: its end would otherwise go unnoticed.
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITED)
    prctl(CHILD_SUBREAPER, 1)
    prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)
    try:
        if os.getppid() == driver:  # else the driver died before the line above
            if options["confinement"] is not None:
                confined = start_confined(options["confinement"], memory_mb, command)
            ended = wait(confined.pid if confined else start(memory_mb, command))
            if ended is not None:
                status = confined.status() if confined else ended
    except OSError as error:
        print(f"the command cannot be confined: {error}", file=sys.stderr, flush=True)
    kill_children()
    return status


if __name__ == "__main__":
    code = os.waitstatus_to_exitcode(main(json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
    if code < 0:  # the command was killed by a signal
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITED)
        os.kill(os.getpid(), -code)
    os._exit(code)
