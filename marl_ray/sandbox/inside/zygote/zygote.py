"""The zygote: sets up the isolation once, then only forks and reaps guests.

    host process --stream--> judge --seqpacket--> zygote --fork--> guest
                             judge <-----------stream-----------> guest

The zygote never sees a program, a test or an expected value, so a guest, being its copy, cannot find any. The lifeline
is a pipe that carries no data: when the host process dies, in any way, its end closes, and zygote, judge and guests
end.
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
from ..isolation import access_times, file_access, mount_namespace, process, seccomp
from ..judge import judge
from ..judge.zygote_client import ZygoteClient
from ..protocol import messages
from ..protocol.messages import FORK_REPLY, FORK_REQUEST
from . import preload, thread_limit

_OPEN_FILES = 64
_MIN_STACK = 1 << 20
_LARGE_STACKS_PER_MEMORY = 4
_STACKS_PER_MEMORY = 128
"""A thread's stack is 1/128 of the memory limit and at least 1 MiB. The limit counts whole stacks: 512 MiB would not
hold 64 threads with the default stacks of 8 MiB."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """The restrictions that the judge and each guest put on themselves after the fork."""

    ruleset: int | None
    """Landlock ruleset of guests without a scratch folder; None without Landlock."""
    guest_filter: seccomp.Filter | None
    judge_filter: seccomp.Filter | None
    no_fork_filter: seccomp.Filter | None
    """Seccomp filters; None at level `none`. The last one is for the processes that the judge forks."""
    counts_threads: bool
    base_memory: int
    """Bytes of address space of the zygote, to which a guest's memory limit is added."""
    readable: tuple[str, ...]
    """Readable paths for the ruleset that a guest with a scratch folder makes itself."""
    scratch: file_access.Scratch | None


class Zygote:
    """The process that forks the guests of one judge."""

    def __init__(
        self, link: socket.socket, lifeline: int, isolation: Isolation, streams: script_process.StandardStreams
    ) -> None:
        self._link = link
        self._links = {link.fileno(): link}
        """Connections that ask for guests, by descriptor: the judge's, and at most one of a process that the judge has
        forked."""
        self._lifeline = lifeline
        self._isolation = isolation
        self._children: dict[int, socket.socket] = {}
        """Guests, with the connection that asked for each."""
        self._scratch_folders: dict[int, str] = {}
        self._pid = os.getpid()
        self._streams = streams
        self._guest = guest.Guest()
        self._poller = select.poll()
        self._poller.register(link, select.POLLIN)
        self._poller.register(lifeline, select.POLLIN)
        self._threads = thread_limit.ThreadCounter(self._poller) if isolation.counts_threads else None

    def serve(self) -> bool:
        """Serve until the judge or the host process ends, then kill all guests; return whether the judge ended."""
        try:
            while True:
                ready = dict(self._poller.poll())
                if self._threads is not None:  # before descriptor numbers are reused
                    self._threads.handle_events(ready, self._children)
                if self._lifeline in ready:
                    return False
                for descriptor, link in list(self._links.items()):
                    is_open = link.fileno() >= 0  # the judge may have ended it just now
                    if descriptor in ready and is_open and not self._handle_request(link):
                        if link is self._link:
                            return True
                        self._close_link(link)
        finally:
            for pid in list(self._children):
                self._reap(pid)

    def _handle_request(self, link: socket.socket) -> bool:
        """Answer one request; return false if the process at the other end has ended."""
        try:
            data, descriptors = _receive(link)
            if not data:
                return False
            operation, *numbers = FORK_REQUEST.unpack(data)
            if operation in (b"L", b"E"):
                # Tests run in the process at the end of another link: they must not make links of their own.
                if link is not self._link:
                    return False
                self._end_other_links()
                if operation == b"L":
                    self._open_link(descriptors[0], numbers[0])
                return True
            status = 0
            if operation == b"F":
                pid = self._fork(link, descriptors, *numbers)
            else:
                pid = numbers[0]
                # Tests at the other end of another link may end their own guests only.
                if link is self._link or self._children.get(pid) is link:
                    status = self._reap(pid)
            for descriptor in descriptors:
                os.close(descriptor)
            link.send(FORK_REPLY.pack(pid, status))
        except (ConnectionError, struct.error, IndexError):  # that process has ended, or sent no request
            return False
        return True

    def _open_link(self, descriptor: int, spare: int) -> None:
        """Serve a further connection, whose guest the process `spare` is from now on (0: none)."""
        link = self._links[descriptor] = socket.socket(fileno=descriptor)
        self._poller.register(descriptor, select.POLLIN)
        if spare in self._children:
            self._children[spare] = link

    def _end_other_links(self) -> None:
        """End all connections except the judge's. A guest may hold the other end of one open, so that the end of its
        process is not seen."""
        for link in list(self._links.values()):
            if link is not self._link:
                self._close_link(link)

    def _close_link(self, link: socket.socket) -> None:
        """Forget a connection whose process has ended, and end the guests of that process."""
        for pid, owner in list(self._children.items()):
            if owner is link:
                self._reap(pid)
        self._poller.unregister(link)
        del self._links[link.fileno()]
        link.close()

    def _reap(self, pid: int) -> int:
        """Kill and reap a guest; return its wait status."""
        if pid not in self._children:
            return 0
        del self._children[pid]
        if self._threads is not None:
            self._threads.remove_guest(pid)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if self._isolation.scratch is not None:
            self._isolation.scratch.give_back(self._scratch_folders.pop(pid))
        return status

    def _fork(
        self, link: socket.socket, descriptors: list[int], memory_mb: int, cpu_s: int, output: int, reply: int
    ) -> int:
        """Fork a guest with these `GuestLimits`; return its process id, or minus errno."""
        scratch = self._isolation.scratch
        folder = None
        try:
            if scratch is not None:
                folder = scratch.take()
            pid = process.fork()
        except OSError as error:
            if scratch is not None and folder is not None:
                scratch.give_back(folder)
            return -(error.errno or errno.EAGAIN)
        if pid:
            self._children[pid] = link
            if folder is not None:
                self._scratch_folders[pid] = folder
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
        connection, out, *rest = descriptors  # `rest`: standard input, standard error
        # Opened here, since all processes with an inherited description share its offset, flags and locks.
        stdin = rest[0] if rest else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        if folder is not None:
            os.chdir(folder)
            file_access.enforce(file_access.make_ruleset(self._isolation.readable, folder))
        elif self._isolation.ruleset is not None:
            file_access.enforce(self._isolation.ruleset)
        if self._threads is not None:
            self._threads.install_filter()
        # Any of these descriptors may have number 3 itself, so the connection, which gets number 3, comes last.
        os.dup2(stdin, 0)
        os.dup2(out, 1)
        os.dup2(rest[1] if len(rest) > 1 else out, 2)
        os.dup2(connection, 3)
        process.close_from(4)
        threading.stack_size(max(_MIN_STACK, memory // _STACKS_PER_MEMORY))
        process.limit_stack_size(memory // _LARGE_STACKS_PER_MEMORY)
        address_space = resource.RLIM_INFINITY
        if self._isolation.base_memory:
            address_space = self._isolation.base_memory + memory
        process.limit(AS=address_space, CPU=cpu_s, FSIZE=output + 8192, NOFILE=_OPEN_FILES)


def _receive(link: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one request and its descriptors."""
    data, ancillary, _, _ = link.recvmsg(FORK_REQUEST.size, socket.CMSG_SPACE(4 * 4))
    descriptors: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors += struct.unpack(f"{len(payload) // 4}i", payload[: len(payload) // 4 * 4])
    return data, descriptors


def _drop_rights(user: int | None) -> bool:
    """Change to `user` if given, or drop all capabilities if that is not permitted; return whether the user changed."""
    if user is not None:
        try:
            process.drop_user(user)
            return True
        except OSError:
            process.drop_capabilities()
    return False


def _enter_mounts(config: dict[str, Any]) -> bool:
    """Enter a mount namespace where that is possible; return whether this process has mounts of its own.

    Raises OSError if scratch folders need the namespace and there is none.
    """
    if config["level"] in ("none", "bwrap"):
        return config["level"] == "bwrap"
    own_user = config["user"] is None
    if not (config["scratch_mb"] or mount_namespace.available(own_user)):
        return False
    mount_namespace.enter(own_user)
    return True


def _build_isolation(
    config: dict[str, Any], readable: list[str], folders: file_access.Scratch | None, own_mounts: bool
) -> Isolation:
    """Return the configured restrictions. Raises OSError if one is unavailable."""
    ruleset = guest_filter = judge_filter = no_fork_filter = None
    counts = False
    if config["landlock"] == "required" or (config["landlock"] == "optional" and file_access.landlock_abi()):
        ruleset = file_access.make_ruleset(readable)
    if config["seccomp"]:
        counts = thread_limit.available()
        may_open = config["may_open"]
        code = seccomp.build_filter(may_open=may_open, own_mounts=own_mounts, may_write=folders is not None)
        guest_filter = seccomp.Filter(code)
        judge_filter = seccomp.Filter(seccomp.build_filter(may_open=may_open, own_mounts=own_mounts, judge=True))
        no_fork_filter = seccomp.Filter(seccomp.build_no_fork_filter())
    memory = process.address_space()
    return Isolation(ruleset, guest_filter, judge_filter, no_fork_filter, counts, memory, tuple(readable), folders)


def _keep_access_times(paths: list[str], host: socket.socket, lifeline: int) -> None:
    """Read all files that guests may read, and start a process that reads them again when that is needed."""
    later = access_times.read_due_files(paths)
    zygote = os.getpid()
    if later and process.fork() == 0:
        try:
            process.die_with_parent(zygote)
            host.close()
            access_times.keep_reading(later, lifeline)
        finally:
            os._exit(0)


def _start(host: socket.socket, lifeline: int, progress: int, config: dict[str, Any]) -> tuple[Zygote, int]:
    """Import modules, set up the isolation and fork the judge. Returns in the zygote only, with the judge's number."""
    preload.load(preload.COMMON)
    if not config["may_open"] or (config["user"] is not None and not config["readable_by_all"]):
        preload.load(preload.RARE)
        from ..judge import unit_runner  # noqa: F401 - the judge cannot open its file later
    if config["packages"]:
        preload.load_packages(config["packages"], config["package_roots"])
        process.require_one_thread()
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)  # a bare interpreter skips site.py, which defines them
    os.environ.clear()
    sys.argv[:] = script_process.ARGV
    sys.setrecursionlimit(messages.RECURSION)
    sys.path[:] = [path for path in sys.path if os.path.exists(path)]
    process.offer_to_oom_killer()
    process.share_malloc_arena()
    # Mounting needs rights, which end below. The scratch folders are made after that, by their owner.
    own_mounts = _enter_mounts(config)
    user = config["user"]
    readable = config["readable" if own_mounts else "readable_on_shared_mounts"]
    folders = file_access.Scratch(config["scratch_mb"], user) if config["scratch_mb"] else None
    if own_mounts and user is None:
        process.drop_capabilities()
    dropped = _drop_rights(user)
    if folders is not None:
        folders.make_folders()
    if process.LINUX:
        process.disable_dumps()
        process.no_new_privs()
    if config["landlock"] == "required" and not own_mounts:
        _keep_access_times(readable, host, lifeline)
    isolation = _build_isolation(config, readable, folders, own_mounts)
    kind = socket.SOCK_SEQPACKET if process.LINUX else socket.SOCK_STREAM
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    streams = script_process.StandardStreams()
    guest.warm_up()
    random.seed(0)  # every guest gets the same random numbers
    gc.collect()
    gc.freeze()
    zygote = os.getpid()
    facts = {
        "landlock_abi": file_access.landlock_abi() if isolation.ruleset is not None else 0,
        "threads": thread_limit.MAX_THREADS if isolation.counts_threads else 0,
        "uid": os.getuid(),
        "dropped": dropped,
        "own_mounts": own_mounts,
    }
    judge_pid = process.fork()
    if judge_pid == 0:
        ours.close()
        os.close(lifeline)
        _run_judge(zygote, host, theirs, progress, isolation, facts)
    theirs.close()
    host.close()
    os.close(progress)
    process.limit(CORE=0, MEMLOCK=0, MSGQUEUE=0)
    return Zygote(ours, lifeline, isolation, streams), judge_pid


def _run_judge(
    zygote: int, host: socket.socket, link: socket.socket, progress: int, isolation: Isolation, facts: dict[str, Any]
) -> None:
    try:
        if process.LINUX:
            process.die_with_parent(zygote)
        if isolation.ruleset is not None:
            file_access.enforce(isolation.ruleset)
            os.close(isolation.ruleset)
        if isolation.base_memory:
            process.limit(AS=isolation.base_memory + judge.MEMORY, CORE=0)
        if isolation.judge_filter is not None:
            isolation.judge_filter.install()
    except OSError as error:
        host.sendall(messages.pack({"failed": str(error)}))
        os._exit(1)
    try:
        host.sendall(messages.pack({"ready": facts}))
        zygote_client = ZygoteClient(link, wait_for_kills=isolation.scratch is not None)
        judge.Judge(host, zygote_client, progress, isolation.no_fork_filter).serve()
    except (messages.ConnectionClosed, BrokenPipeError):
        os._exit(0)  # the host process ended
    except BaseException:
        os.write(2, traceback.format_exc().encode())  # sys.stderr is already redirected for guests
    finally:
        os._exit(1)


def main(host_descriptor: int, lifeline: int, progress: int) -> int:
    """Run the zygote with the inherited descriptors; return its exit status.

    The first frame of the host process is the configuration.
    """
    host = socket.socket(fileno=host_descriptor)
    config = messages.FrameReader(host.recv).message()
    try:
        zygote, judge_pid = _start(host, lifeline, progress, config)
    except OSError as error:
        host.sendall(messages.pack({"failed": str(error)}))
        return 1
    if not zygote.serve():
        return 0
    _, status = os.waitpid(judge_pid, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
    stuck = killed or os.waitstatus_to_exitcode(status) == messages.STUCK_STATUS
    return messages.STUCK_STATUS if stuck else 0
