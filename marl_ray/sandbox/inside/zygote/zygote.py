"""The zygote: sets up the isolation once, then does nothing but fork guests and bury them.

    owner --descriptor--> judge --seqpacket--> zygote --fork--> guest
                          judge <-----------stream-----------> guest

It never sees a program, a test or an expected value, so a guest, being its copy, cannot find any. The owner's
end of the lifeline (a pipe that nobody writes to) closes when the owner dies, however it dies; then the
zygote ends, and with it judge and guests.
"""

from __future__ import annotations

import builtins
import errno
import gc
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import Any

from ..guest import guest, script_process
from ..isolation import landlock, process, scratch, seccomp, syscalls
from ..judge import judge
from ..protocol import frames
from ..protocol.frames import FORK_REPLY, FORK_REQUEST
from . import preload, thread_limit

RECURSION = 3000
"""Of judge and guests; the deepest value that crosses takes half of it (`encoding.MAX_DEPTH`)."""
_OPEN_FILES = 64
_LEAST_STACK, _THREADS_TO_FIT = 1 << 20, 128
"""The memory limit counts whole stacks: by default 8 MiB each, so that 512 MiB would not hold 64 threads."""


@dataclass(frozen=True, slots=True)
class GuestIsolation:
    """What stands between a guest and the machine; the first two may be missing at weaker levels. With `scratch` each
    guest has a folder of its own, and so a ruleset of its own, for these `readable` paths and that folder."""

    ruleset: int | None
    guest_filter: seccomp.Filter | None
    counts_threads: bool
    base_memory: int
    readable: tuple[str, ...]
    scratch: scratch.Scratch | None


class Zygote:
    """Serves one judge."""

    def __init__(
        self, link: socket.socket, lifeline: int, isolation: GuestIsolation, streams: script_process.StandardStreams
    ) -> None:
        self._link = link
        self._lifeline = lifeline
        self._isolation = isolation
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._children: set[int] = set()
        self._folders: dict[int, str] = {}
        """Of guests that have one."""
        self._pid = os.getpid()
        self._streams = streams
        self._guest = guest.Guest()
        self._poller = select.poll()
        self._poller.register(self._link, select.POLLIN)
        self._poller.register(self._lifeline, select.POLLIN)
        self._threads = thread_limit.ThreadCounter(self._poller) if isolation.counts_threads else None

    def serve(self) -> None:
        """Until the judge or the owner is gone; leaves no guest behind."""
        link = self._link.fileno()
        try:
            while True:
                ready = dict(self._poller.poll())
                if self._threads is not None:  # before the numbers of descriptors get another meaning
                    self._threads.answer(ready, self._children)
                if self._lifeline in ready or (link in ready and not self._answer()):
                    return
        finally:
            for pid in list(self._children):
                self._bury(pid)

    def _answer(self) -> bool:
        data, descriptors = _receive(self._link)
        if not data:
            return False
        operation, *numbers = FORK_REQUEST.unpack(data)
        if operation == b"F":
            answer = (self._fork(descriptors, *numbers), 0, 0.0)
        else:
            answer = (numbers[0], *self._bury(numbers[0]))
        for descriptor in descriptors:
            os.close(descriptor)
        self._link.send(FORK_REPLY.pack(*answer))
        return True

    def _bury(self, pid: int) -> tuple[int, float]:
        """Kill and reap a guest; gives its wait status and CPU seconds."""
        if pid not in self._children:
            return 0, 0.0
        self._children.discard(pid)
        if self._threads is not None:
            self._threads.forget(pid)
        os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        if self._isolation.scratch is not None:
            self._isolation.scratch.give_back(self._folders.pop(pid))
        return status, usage.ru_utime + usage.ru_stime

    def _fork(self, descriptors: list[int], memory_mb: int, cpu_s: int, output: int, reply: int) -> int:
        """A guest with these `GuestLimits`; its process, or minus errno."""
        folder = None
        try:
            folder = None if self._isolation.scratch is None else self._isolation.scratch.take()
            pid = process.fork()
        except OSError as error:
            if self._isolation.scratch is not None and folder is not None:
                self._isolation.scratch.give_back(folder)
            return -(error.errno or errno.EAGAIN)
        if pid:
            self._children.add(pid)
            if folder is not None:
                self._folders[pid] = folder
            return pid
        try:
            self._become_guest(descriptors, memory_mb << 20, cpu_s, output, folder)
            self._streams.set_limit(output, separate_stderr=len(descriptors) > 3)
            self._guest.max_reply = reply
            if self._isolation.guest_filter is not None:
                self._isolation.guest_filter.install()
            self._guest.serve()
        finally:
            os._exit(97)

    def _become_guest(self, descriptors: list[int], memory: int, cpu_s: int, output: int, folder: str | None) -> None:
        if process.LINUX:
            process.die_with_parent(self._pid)
        connection, out = descriptors[:2]
        if folder is not None:
            os.chdir(folder)
            landlock.enforce(landlock.make_ruleset(self._isolation.readable, folder))
        elif self._isolation.ruleset is not None:
            landlock.enforce(self._isolation.ruleset)
        if self._threads is not None:
            self._threads.submit()
        # Any of these may itself have number 3, so the connection, which is to get that number, comes last.
        os.dup2(descriptors[2] if len(descriptors) > 2 else self._null, 0)
        os.dup2(out, 1)
        os.dup2(descriptors[3] if len(descriptors) > 3 else out, 2)
        os.dup2(connection, 3)
        process.close_from(4)
        threading.stack_size(max(_LEAST_STACK, memory // _THREADS_TO_FIT))
        process.limit(
            AS=self._isolation.base_memory + memory if self._isolation.base_memory else resource.RLIM_INFINITY,
            CPU=cpu_s,
            FSIZE=output + 8192,
            NOFILE=_OPEN_FILES,
        )


def _receive(link: socket.socket) -> tuple[bytes, list[int]]:
    """One request and the descriptors that came with it."""
    data, ancillary, _, _ = link.recvmsg(FORK_REQUEST.size, socket.CMSG_SPACE(4 * 4))
    descriptors: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors += struct.unpack(f"{len(payload) // 4}i", payload[: len(payload) // 4 * 4])
    return data, descriptors


def _drop_rights(user: int | None) -> bool:
    """Become `user` if asked; a root that may not gives up its capabilities instead. Whether the user changed."""
    if user is None:
        return False
    try:
        process.drop_user(user)
    except OSError:
        process.drop_capabilities()
        return False
    return True


def _scratch(config: dict[str, Any]) -> scratch.Scratch | None:
    """Where guests are to have folders, with no right left that this took. Raises OSError where there can be none."""
    if not config["scratch_mb"]:
        return None
    folders = scratch.Scratch(config["scratch_mb"], config["user"], own_namespace=config["level"] == "bwrap")
    if config["user"] is None:
        process.drop_capabilities()
    return folders


def _build_isolation(
    config: dict[str, Any], folders: scratch.Scratch | None
) -> tuple[GuestIsolation, seccomp.Filter | None]:
    """The isolation the owner asked for, and the judge's own filter. Raises OSError when a part cannot be had."""
    ruleset = guest_filter = judge_filter = None
    counts = False
    if config["landlock"] == "required" or (config["landlock"] == "optional" and landlock.abi()):
        ruleset = landlock.make_ruleset(config["readable"])
    if config["seccomp"]:
        counts = thread_limit.available()
        writes = folders is not None
        guest_filter = seccomp.Filter(seccomp.build_filter(may_open=config["may_open"], may_write=writes))
        judge_filter = seccomp.Filter(
            seccomp.build_filter(may_open=config["may_open"], extra=syscalls.JUDGE_ONLY, may_seal=True)
        )
    readable = tuple(config["readable"])
    return GuestIsolation(ruleset, guest_filter, counts, process.address_space(), readable, folders), judge_filter


def _start(owner: socket.socket, lifeline: int, config: dict[str, Any]) -> Zygote:
    """Imports, walls, and the judge's fork. Returns in the zygote only; the judge never comes back."""
    preload.load(preload.COMMON)
    if not config["may_open"] or (config["user"] is not None and not config["readable_by_all"]):
        preload.load(preload.RARE)
    if config["packages"]:
        preload.load_packages(config["packages"], config["package_roots"])
        process.require_one_thread()
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)  # site.py provides them, which a bare interpreter skips
    os.environ.clear()
    sys.argv[:] = script_process.ARGV
    sys.setrecursionlimit(RECURSION)
    sys.path[:] = [path for path in sys.path if os.path.exists(path)]
    process.offer_to_oom_killer()
    process.share_malloc_arena()
    folders = _scratch(config)
    dropped = _drop_rights(config["user"])
    if folders is not None:
        folders.make_folders()
    if process.LINUX:
        process.disable_dumps()
        process.no_new_privs()
    isolation, judge_filter = _build_isolation(config, folders)
    kind = socket.SOCK_SEQPACKET if process.LINUX else socket.SOCK_STREAM
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    streams = script_process.StandardStreams()
    guest.warm_up()
    random.seed(0)  # every guest draws the same numbers
    gc.collect()
    gc.freeze()
    zygote = os.getpid()
    facts = {
        "landlock_abi": landlock.abi() if isolation.ruleset is not None else 0,
        "threads": thread_limit.MAX_THREADS if isolation.counts_threads else 0,
        "uid": os.getuid(),
        "dropped": dropped,
    }
    if process.fork() == 0:
        ours.close()
        os.close(lifeline)
        _run_judge(zygote, owner, theirs, isolation, judge_filter, facts)
    theirs.close()
    owner.close()
    process.limit(CORE=0, MEMLOCK=0, MSGQUEUE=0)
    return Zygote(ours, lifeline, isolation, streams)


def _run_judge(
    zygote: int,
    owner: socket.socket,
    link: socket.socket,
    isolation: GuestIsolation,
    judge_filter: seccomp.Filter | None,
    facts: dict[str, Any],
) -> None:
    try:
        if process.LINUX:
            process.die_with_parent(zygote)
        if isolation.ruleset is not None:
            landlock.enforce(isolation.ruleset)
            os.close(isolation.ruleset)
        if isolation.base_memory:
            process.limit(AS=isolation.base_memory + judge.MEMORY, CORE=0)
        if judge_filter is not None:
            judge_filter.install()
    except OSError as error:
        frames.send(owner, {"failed": str(error)})
        os._exit(1)
    try:
        frames.send(owner, {"ready": facts})
        judge.Judge(owner, link, wait_for_kills=isolation.scratch is not None).serve()
    except (frames.ConnectionClosed, BrokenPipeError):
        os._exit(0)  # the owner is gone
    except BaseException:
        os.write(2, traceback.format_exc().encode())  # sys.stderr is a guest's by now
    finally:
        os._exit(1)


def main(owner_descriptor: int, lifeline: int) -> None:
    """Called by `boot.py` with the two inherited descriptors. The owner's first frame is the configuration."""
    owner = socket.socket(fileno=owner_descriptor)
    config = frames.FrameReader(owner).message()
    try:
        zygote = _start(owner, lifeline, config)
    except OSError as error:
        frames.send(owner, {"failed": str(error)})
        return
    zygote.serve()
