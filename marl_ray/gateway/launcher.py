"""Parent of a command: sets limits, and kills all descendants of the command when the command or the driver ends, even
descendants that have left its process group. Imports no package.

python launcher.py MEMORY_MB DRIVER_PID COMMAND ...
"""

import ctypes
import os
import resource
import signal
import sys

PARENT_DEATH_SIGNAL, CHILD_SUBREAPER = 1, 36
"""PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl(2)."""


class Ended(BaseException):
    """SIGTERM: the episode or the driver has ended."""


def start(memory_mb: int, command: list[str]) -> int:
    """Start the command and return its process id."""
    pid = os.fork()
    if pid:
        return pid
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_mb:
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]} cannot be started ({error.strerror})", file=sys.stderr, flush=True)
    os._exit(127)


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


def main(memory_mb: int, driver: int, command: list[str]) -> int:
    """Return the wait status of the command."""

    def end(*_: object) -> None:
        raise Ended

    signal.signal(signal.SIGTERM, end)
    prctl, status = ctypes.CDLL(None).prctl, 1 << 8
    prctl(CHILD_SUBREAPER, 1)
    prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)
    try:
        if os.getppid() == driver:  # else the driver died before the line above
            first, ended = start(memory_mb, command), 0
            while ended != first:
                ended, status = os.waitpid(-1, 0)
    except Ended:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kill_children()
    return status


if __name__ == "__main__":
    code = os.waitstatus_to_exitcode(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
    if code < 0:  # the command was killed by a signal
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
