"""A program that tries to leave its confinement, and prints which attempts succeeded.

python hostile_program.py SECRET_FILE PORT LOCAL_SOCKET DRIVER_PID [ATTEMPT ...]

All attempts are for a confined program only: without a confinement some of them damage the machine.
"""

import ctypes
import json
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Callable

secret, port, local, driver = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER, PTRACE_ATTACH, MEMFD = 0x10000000, 16, 319


def called(result: int) -> bool:
    return result >= 0


def linked() -> bool:
    os.symlink(secret, "link")
    return bool(pathlib.Path("link").read_text())


def connects(family: int, address: object, kind: int = socket.SOCK_STREAM) -> bool:
    with socket.socket(family, kind) as connection:
        connection.settimeout(2)
        connection.connect(address)
        return kind == socket.SOCK_STREAM or connection.send(b"x") > 0


def fills(folder: str) -> bool:
    for number in range(40):
        pathlib.Path(folder, str(number)).write_bytes(bytes(16 << 20))
    return True


def keeps_memory() -> bool:
    return len(bytearray(1 << 30)) > 0


def forks() -> bool:
    """Return whether 200 processes can live at the same time."""
    alive = []
    try:
        for _ in range(200):
            alive.append(subprocess.Popen(["/bin/sleep", "1000"]))
        return True
    finally:
        for process in alive:
            process.kill()
            process.wait()  # a killed process counts until then


ATTEMPTS: dict[str, Callable[[], object]] = {
    "read_secret": lambda: pathlib.Path(secret).read_text(),
    "stat_secret": lambda: os.stat(secret),
    "change_secret": lambda: os.chmod(secret, 0o777),
    "follow_link": linked,
    "read_passwords": lambda: pathlib.Path("/etc/passwd").read_text(),
    "read_home": lambda: os.listdir(os.path.expanduser("~root")),
    "read_environment_of_driver": lambda: pathlib.Path(f"/proc/{driver}/environ").read_text(),
    "see_driver": lambda: os.listdir(f"/proc/{driver}"),
    "read_environment_of_parent": lambda: pathlib.Path("/proc/1/environ").read_bytes(),
    "read_root_of_parent": lambda: os.listdir("/proc/1/root/"),
    "write_beside_program": lambda: pathlib.Path(sys.argv[0]).with_name("new").write_text("x"),
    "overwrite_program": lambda: os.open(sys.argv[0], os.O_WRONLY),
    "write_task": lambda: pathlib.Path(os.environ["TMPDIR"], "task.json").write_text("{}"),
    "write_temporary": lambda: pathlib.Path(f"/tmp/new{driver}").write_text("x"),
    "write_system": lambda: pathlib.Path("/usr/new").write_text("x"),
    "write_kernel": lambda: pathlib.Path("/proc/sys/kernel/hostname").write_text("x"),
    "connect_port": lambda: connects(socket.AF_INET, ("127.0.0.1", port)),
    "connect_internet": lambda: connects(socket.AF_INET, ("1.1.1.1", 53)),
    "send_datagram": lambda: connects(socket.AF_INET, ("1.1.1.1", 53), socket.SOCK_DGRAM),
    "connect_metadata": lambda: connects(socket.AF_INET, ("169.254.169.254", 80)),
    "connect_local": lambda: connects(socket.AF_UNIX, local),
    "connect_abstract": lambda: connects(socket.AF_UNIX, "\0" + local),
    "connect_machine": lambda: connects(40, (2, 1)),  # AF_VSOCK
    "raw_socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    "packet_socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    "signal_driver": lambda: os.kill(driver, 0),
    "signal_all": lambda: os.kill(-1, 0),
    "trace_parent": lambda: called(libc.ptrace(PTRACE_ATTACH, 1, None, None)) or None,
    "new_namespace": lambda: called(libc.unshare(CLONE_NEWUSER)) or None,
    "mount": lambda: called(libc.mount(b"tmpfs", b"/proc", b"tmpfs", 0, None)) or None,
    "become_root": lambda: os.setuid(0),
    "set_hostname": lambda: socket.sethostname("x"),
    "memory": keeps_memory,
    "memory_file": lambda: called(libc.syscall(MEMFD, b"x", 0)) or None,
    "fill_disk": lambda: fills(os.environ["TMPDIR"]),
    "processes": forks,
}


def main() -> None:
    os.chdir(os.environ["TMPDIR"])
    succeeded = {}
    for name in sys.argv[5:] or ATTEMPTS:
        try:
            succeeded[name] = float(ATTEMPTS[name]() not in (None, False) or name in ("change_secret", "signal_driver"))
        except (OSError, MemoryError):
            succeeded[name] = 0.0
    for variable in os.environ:
        if "SECRET" in os.environ[variable]:
            succeeded["secret_variable"] = 1.0
    subprocess.Popen(["/bin/sleep", f"9{driver}"], start_new_session=True)  # outlives the command
    print(json.dumps({"reward": sum(succeeded.values()), "metrics": succeeded}))


if __name__ == "__main__":
    main()
