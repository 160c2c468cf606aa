"""Programs that try to reach the host: environment, files, links, sockets, signals, other processes, execution.

Every operation must be denied.
"""

# ruff: noqa: E501 (lines of the hostile programs)
from __future__ import annotations

from tests.sandbox.attacks.attack import PRELUDE, Attack

ATTACKS = (
    Attack(
        "environment",
        "Find the host's secret in the environments of the guest, its parents and all processes.",
        PRELUDE
        + r"""
def f(x):
    def own():
        return SECRET in repr(os.environ) or None
    def libc_environ():
        pointers = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
        for i in range(10000):
            if not pointers[i]: return None
            if SECRET.encode() in pointers[i]: return True
    def read(path):
        def run():
            with open(path, "rb") as file: return SECRET.encode() in file.read() or None
        return run
    pids = ["self", "thread-self", str(os.getppid()), "1", "@HOST_PID@"] + [str(n) for n in range(2, 400)]
    attempt([("own", own), ("libc", libc_environ)] + [(pid, read(f"/proc/{pid}/environ")) for pid in pids])
""",
        contained=True,
    ),
    Attack(
        "process_files",
        "Read command lines, memory maps, links and status files of the host's processes.",
        PRELUDE
        + r"""
def f(x):
    def read(name):
        return lambda: open(f"/proc/@HOST_PID@/{name}", "rb").read(16) or None
    names = ["cmdline", "maps", "status", "stat", "limits", "mountinfo", "cgroup", "auxv", "comm", "io"]
    attempt([(name, read(name)) for name in names]
            + [("fd", lambda: os.listdir("/proc/@HOST_PID@/fd"))]
            + [(link, lambda link=link: os.readlink("/proc/@HOST_PID@/" + link)) for link in ("exe", "cwd", "fd/0")])
""",
        contained=True,
    ),
    Attack(
        "read_file",
        "Read a file of the host by every way of opening a file.",
        PRELUDE
        + r"""
def f(x):
    path = "@CANARY@"
    def with_libc():
        libc.fopen.restype = ctypes.c_void_p
        return libc.fopen(path.encode(), b"r")
    def with_mmap():
        import mmap
        return mmap.mmap(os.open(path, os.O_RDONLY), 0, access=mmap.ACCESS_READ)[:10]
    def with_sqlite():
        import sqlite3
        return sqlite3.connect("file:@FOLDER@/x.db?mode=rwc", uri=True).execute("create table t(x)")
    def with_linecache():
        import linecache
        return linecache.getlines(path) or None
    def with_import():
        import importlib.util
        spec = importlib.util.spec_from_file_location("canary", "@FOLDER@/module.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return True
    attempt([
        ("open", lambda: open(path).read()), ("os.open", lambda: os.open(path, os.O_RDONLY)),
        ("o_path", lambda: os.read(os.open(path, os.O_PATH), 1)),
        ("tmpfile", lambda: os.open("@FOLDER@", os.O_TMPFILE | os.O_RDWR)),
        ("proc root", lambda: open("/proc/self/root" + path).read()),
        ("proc 1 root", lambda: open("/proc/1/root" + path).read()),
        ("host cwd", lambda: open("/proc/@HOST_PID@/root" + path).read()),
        ("dots", lambda: open("/usr/lib/../.." + path).read()), ("slashes", lambda: open("/" + path).read()),
        ("libc", with_libc), ("mmap", with_mmap), ("sqlite", with_sqlite), ("linecache", with_linecache),
        ("import", with_import), ("openat", lambda: raw(257, 56, -100, path.encode(), 0)),
        ("open", lambda: raw(2, None, path.encode(), 0)), ("creat", lambda: raw(85, None, path.encode(), 0o600)),
        ("openat2", lambda: raw(437, 437, -100, path.encode(), ctypes.create_string_buffer(24), 24)),
        ("handle", lambda: raw(303, 264, -100, path.encode(), ctypes.create_string_buffer(256),
                               ctypes.create_string_buffer(8), 0)),
    ])
""",
        contained=True,
    ),
    Attack(
        "read_system",
        "Read accounts, keys, cluster tokens and devices.",
        PRELUDE
        + r"""
def f(x):
    paths = ["/etc/passwd", "/etc/shadow", "/etc/hostname", "/etc/resolv.conf", "/root/.bashrc", "/root/.profile",
             "/var/run/secrets/kubernetes.io/serviceaccount/token", "/proc/cpuinfo", "/proc/version", "/proc/net/tcp",
             "/sys/class/dmi/id/sys_vendor", "/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/kvm", "/dev/fuse",
             "/dev/ptmx", "/dev/tty", "/dev/console", "/dev/full", "/proc/kcore", "/proc/keys", "/var/log/dpkg.log"]
    def read(path):
        return lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK) >= 0
    attempt([(path, read(path)) for path in paths])
""",
        contained=True,
    ),
    Attack(
        "list_folders",
        "List the host's folders.",
        PRELUDE
        + r"""
def f(x):
    def listed(path):
        return lambda: any("marl_ray_canary" in name for name in os.listdir(path)) or None
    def walked():
        for top, folders, files in os.walk("/tmp"):
            if any("marl_ray_canary" in name for name in folders + files): return top
    attempt([("folder", lambda: os.listdir("@FOLDER@")), ("tmp", listed("/tmp")), ("walk", walked),
             ("root", lambda: os.listdir("/root")), ("home", lambda: os.listdir("/home")),
             ("proc", lambda: [n for n in os.listdir("/proc") if n == "@HOST_PID@"] or None),
             ("scandir", lambda: list(os.scandir("@FOLDER@")))])
""",
        contained=True,
    ),
    Attack(
        "write_files",
        "Write to the canary, shell start files, Python's own library and kernel settings.",
        PRELUDE
        + r"""
def f(x):
    def write(path, mode="a"):
        def run():
            with open(path, mode) as file: return file.write("pwned") > 0
        return run
    library = os.path.dirname(os.__file__)
    paths = ["@CANARY@", "@FOLDER@/new", "/tmp/marl_ray_attack", "/etc/profile.d/marl_ray_attack.sh",
             "/root/.bashrc", library + "/marl_ray_attack.py", "/usr/lib/marl_ray_attack", "/dev/null/x",
             "/proc/self/oom_score_adj", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/self/mem",
             "/sys/fs/cgroup/cgroup.procs", "/proc/self/uid_map", "/var/spool/cron/crontabs/root"]
    attempt([(path, write(path)) for path in paths] + [("truncate", write("@CANARY@", "w")), ("r+", write("@CANARY@", "r+"))])
""",
        contained=True,
    ),
    Attack(
        "change_files",
        "Delete, rename, truncate, re-own or re-stamp existing files, and create new nodes.",
        PRELUDE
        + r"""
def f(x):
    path, folder = "@CANARY@", "@FOLDER@"
    attempt([(name, true(action)) for name, action in [
        ("unlink", lambda: os.unlink(path)), ("rename", lambda: os.rename(path, path + "2")),
        ("truncate", lambda: os.truncate(path, 0)), ("chmod", lambda: os.chmod(path, 0)),
        ("chown", lambda: os.chown(path, os.getuid(), -1)), ("utime", lambda: os.utime(path, (0, 0))),
        ("setxattr", lambda: os.setxattr(path, "user.x", b"1")), ("mkdir", lambda: os.mkdir(folder + "/d")),
        ("rmdir", lambda: os.rmdir(folder)), ("mkfifo", lambda: os.mkfifo(folder + "/p")),
        ("mknod", lambda: os.mknod(folder + "/n")), ("symlink", lambda: os.symlink(path, folder + "/s")),
        ("link", lambda: os.link(path, folder + "/l")), ("mkdir tmp", lambda: os.mkdir("/tmp/marl_ray_attack_d")),
        ("chmod tmp", lambda: os.chmod("/tmp", 0o777)), ("exchange", lambda: raw(316, 276, -100, path.encode(), -100,
                                                                                (folder + "/x").encode(), 0)),
    ]])
""",
        contained=True,
    ),
    Attack(
        "links",
        "Reach a file through links, folder descriptors and a changed root.",
        PRELUDE
        + r"""
def f(x):
    def through(fd):
        return lambda: os.open("../../../../../../.." + "@CANARY@", os.O_RDONLY, dir_fd=fd)
    def relative():
        os.chdir("/tmp")
        return open(".." + "@CANARY@").read()
    attempt([
        ("proc fd", lambda: os.open("/proc/self/fd/0/../.." + "@CANARY@", os.O_RDONLY)),
        ("chroot", true(lambda: os.chroot("/tmp"))), ("fchdir", true(lambda: os.fchdir(3))), ("chdir", relative),
        ("bind", true(lambda: raw(165, 40, b"/", b"/tmp", b"", 4096, b""))),
        ("pivot", true(lambda: raw(155, 41, b"/tmp", b"/tmp"))),
    ] + [(f"fd {fd}", through(fd)) for fd in range(0, 64)])
""",
        contained=True,
    ),
    Attack(
        "sockets",
        "Create a socket of any family and kind.",
        PRELUDE
        + r"""
import socket
def f(x):
    attempt([(f"{family}/{kind}", lambda family=family, kind=kind: socket.socket(family, kind).fileno() >= 0)
             for family in range(0, 46) for kind in (1, 2, 3, 5, 1 | 0o4000)]
            + [("raw call", lambda: raw(41, 198, 2, 1, 0) >= 0), ("pair", lambda: socket.socketpair(1, 2))])
""",
        contained=True,
    ),
    Attack(
        "connect",
        "Connect to a server on the host by TCP, path, abstract name and URL.",
        PRELUDE
        + r"""
import socket
def f(x):
    def tcp(host):
        return lambda: socket.create_connection((host, int("@PORT@")), timeout=0.3)
    def unix(name):
        def run():
            s = socket.socket(socket.AF_UNIX)
            s.connect(name)
            return True
        return run
    def url():
        import urllib.request
        return urllib.request.urlopen("http://127.0.0.1:@PORT@/", timeout=0.3)
    def reused():
        ours, _ = socket.socketpair()
        ours.connect("\0@ABSTRACT@")
        return True
    attempt([("v4", tcp("127.0.0.1")), ("v6", tcp("::1")), ("abstract", unix("\0@ABSTRACT@")),
             ("path", unix("@FOLDER@/socket")), ("url", url), ("reused", reused)])
""",
        contained=True,
    ),
    Attack(
        "signals",
        "Kill or stop the host process, the parent, the process group and all processes.",
        PRELUDE
        + r"""
import signal
def f(x):
    host, parent = int("@HOST_PID@"), os.getppid()
    info = ctypes.create_string_buffer(128)
    targets = [host, parent, 1, -1, 0, -host, -parent, 2, 3, 4, 5]
    attempt([(f"kill {pid} {number}", true(lambda pid=pid, number=number: os.kill(pid, number)))
             for pid in targets for number in (9, 19)] + [(name, true(action)) for name, action in [
        ("killpg", lambda: os.killpg(0, 9)), ("exists", lambda: os.kill(host, 0)),
        ("tkill", lambda: raw(200, 130, host, 9)), ("tgkill", lambda: raw(234, 131, host, host, 9)),
        ("tgkill parent", lambda: raw(234, 131, parent, parent, 9)),
        ("sigqueue", lambda: raw(129, 138, host, 9, info)), ("tgsigqueue", lambda: raw(297, 240, host, host, 9, info)),
        ("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(host), 9)),
        ("pidfd parent", lambda: signal.pidfd_send_signal(os.pidfd_open(parent), 9)),
    ]])
""",
        contained=True,
    ),
    Attack(
        "signals_by_descriptor",
        "Make the kernel send signals with F_SETOWN and F_SETSIG.",
        PRELUDE
        + r"""
import fcntl, signal
def f(x):
    def owned(pid):
        def run():
            r, w = os.pipe()
            fcntl.fcntl(r, 10, signal.SIGKILL)
            fcntl.fcntl(r, fcntl.F_SETOWN, pid)
            fcntl.fcntl(r, fcntl.F_SETFL, fcntl.fcntl(r, fcntl.F_GETFL) | os.O_ASYNC)
            os.write(w, b"x")
            return True
        return run
    def owned_ex():
        r, w = os.pipe()
        fcntl.fcntl(r, 15, ctypes.string_at(ctypes.byref((ctypes.c_int * 2)(1, os.getppid())), 8))
        return True
    def lease():
        fcntl.fcntl(os.open("/dev/null", os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)
        return True
    def ioctl_owner():
        r, w = os.pipe()
        fcntl.ioctl(r, 0x8901, ctypes.string_at(ctypes.byref(ctypes.c_int(os.getppid())), 4))
        return True
    attempt([("parent", owned(os.getppid())), ("host", owned(int("@HOST_PID@"))), ("group", owned(-os.getpgrp())),
             ("ex", owned_ex), ("lease", lease), ("fiosetown", ioctl_owner)])
""",
        contained=True,
    ),
    Attack(
        "daemon",
        "Leave a process behind that outlives the sandbox.",
        PRELUDE
        + r"""
def f(x):
    def daemonise():
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                import time
                while True: time.sleep(1)
            os._exit(0)
        return True
    attempt([("daemon", daemonise), ("setsid", true(os.setsid)), ("setpgid", true(lambda: os.setpgid(0, 0))),
             ("no death signal", true(lambda: raw(157, 167, 1, 0, 0, 0, 0))),
             ("subreaper", true(lambda: raw(157, 167, 36, 1, 0, 0, 0)))])
""",
        contained=True,
    ),
    Attack(
        "execute",
        "Execute another program by every call that can.",
        PRELUDE
        + r"""
def f(x):
    argv = (ctypes.c_char_p * 3)(b"/bin/sh", b"-c", None)
    def from_memory():
        fd = os.memfd_create("program")
        os.write(fd, b"#!/bin/sh\n")
        os.execv(fd, ["x"])
    attempt([
        ("execv", lambda: os.execv("/bin/sh", ["sh", "-c", "exit 0"])), ("execve", lambda: os.execve("/bin/sh", ["sh"], {})),
        ("python", lambda: os.execv(sys.executable or "/usr/bin/python3", ["python", "-c", "print('ESCAPED')"])),
        ("loader", lambda: os.execv("/lib64/ld-linux-x86-64.so.2", ["ld", "/bin/true"])),
        ("raw", lambda: raw(59, 221, b"/bin/sh", argv, None)), ("at", lambda: raw(322, 281, -100, b"/bin/sh", argv, None, 0)),
        ("libc", lambda: libc.system(b"true") == 0 or None), ("popen", lambda: libc.popen(b"true", b"r") or None),
        ("memory", from_memory),
    ])
""",
        contained=True,
    ),
)
