"""The host process of an attack: a script that owns a sandbox and secrets, and detects damage.

Run in any Python that can import `marl_ray.sandbox`, as any user: `harness.py OPTIONS`, a JSON object with `isolation`,
`refuse` (kernel features to refuse, see `KERNEL_FEATURES`) and `limits`. The script writes one line of JSON with
`level` or `unavailable`. It answers each line of JSON on stdin, a list of programs, with a line of `reports`, `damage`
(changes of the host), `processes` and `descriptors` (their increase since the start).

The process is a subreaper, so a process that escapes its parent becomes its child and is counted.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import secrets
import shutil
import socket
import struct
import sys
import tempfile
import time
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
ERRNO_ENOSYS, ERRNO_EPERM = 38, 1
_ARM = platform.machine() == "aarch64"

# feature -> (system call, mask of the first argument that selects the call, errno); without a mask, every call counts.
KERNEL_FEATURES: dict[str, list[tuple[int, int | None, int]]] = {
    "landlock": [(444, None, ERRNO_ENOSYS)],
    "seccomp": [(277 if _ARM else 317, None, ERRNO_ENOSYS)],
    "namespaces": [
        (97 if _ARM else 272, None, ERRNO_EPERM),
        (220 if _ARM else 56, 0x7E020000, ERRNO_EPERM),
        (435, None, ERRNO_ENOSYS),
    ],
}
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER = 38, 22, 36


def refuse(features: list[str]) -> None:
    """Install a seccomp filter so that the kernel refuses these features to this process and its children.

    `seccomp` refuses prctl(PR_SET_SECCOMP) as well, so it comes last and affects processes started afterwards.
    """
    if not features:
        return
    load, equal, any_bit, give = 0x20, 0x15, 0x45, 0x06
    program: list[tuple[int, int, int, int]] = []
    for feature in features:
        for number, mask, code in KERNEL_FEATURES[feature]:
            body = [(give, 0, 0, 0x00050000 | code)]
            if mask is not None:
                body = [(load, 0, 0, 16), (any_bit, 0, 1, mask), *body, (give, 0, 0, 0x7FFF0000)]
            program += [(load, 0, 0, 0), (equal, 0, len(body), number), *body]
    if "seccomp" in features:
        body = [(load, 0, 0, 16), (equal, 0, 1, _PR_SET_SECCOMP), (give, 0, 0, 0x00050000 | 22)]
        program += [(load, 0, 0, 0), (equal, 0, len(body), 167 if _ARM else 157), *body]
    program.append((give, 0, 0, 0x7FFF0000))
    raw = b"".join(struct.pack("=HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(raw, len(raw))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0:
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(_PR_SET_SECCOMP, 2, ctypes.c_char_p(header), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the harness could not install its filter")


class AttackTargets:
    """Targets of attacks: a file, a folder, servers, and a secret in memory and environment."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="marl_ray_canary_", dir="/tmp"))
        self.folder.chmod(0o777)
        self.secret = os.environ.setdefault("MARL_RAY_ATTACK_KEY", "SECRET-" + secrets.token_hex(12))
        self.canary = self.folder / "canary"
        self.canary.write_text(self.secret)
        self.canary.chmod(0o666)
        (self.folder / "module.py").write_text("value = 1\n")
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(str(self.folder / "socket"))
        (self.folder / "socket").chmod(0o666)
        self.abstract_name = f"marl_ray_{os.getpid()}_{secrets.token_hex(4)}"
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind("\0" + self.abstract_name)
        for server in (self.tcp, self.unix, self.abstract):
            server.listen(16)
            server.setblocking(False)
        self.before = self.fingerprint()

    def words(self) -> dict[str, str]:
        """Return the replacements of the @WORDS@ in programs."""
        return {
            "@CANARY@": str(self.canary),
            "@FOLDER@": str(self.folder),
            "@HOST_PID@": str(os.getpid()),
            "@PORT@": str(self.tcp.getsockname()[1]),
            "@ABSTRACT@": self.abstract_name,
            "@REPOSITORY@": str(REPOSITORY),
            "@SITE_PACKAGES@": next((p for p in sys.path if p.endswith("site-packages")), "/nowhere"),
        }

    def fingerprint(self) -> list[Any]:
        """Return state that a write, a rename, a new file or a changed mode would alter."""
        entries = []
        for path in sorted(self.folder.iterdir()):
            info = path.lstat()
            text = path.read_text() if path.is_file() else ""
            entries.append([path.name, info.st_mode, info.st_uid, info.st_size, info.st_mtime_ns, text])
        strays = [*Path("/tmp").glob("marl_ray_attack*"), *Path("/dev/shm").glob("marl_ray_attack*")]
        strays += [p for p in (Path("/tmp/planted"), Path("/dev/shm/planted"), Path("/tmp/guest_core")) if p.exists()]
        return [
            entries,
            self.folder.stat().st_mode,
            [str(p) for p in strays],
            sorted(Path.cwd().glob("core*")),
        ]

    def damage(self) -> list[str]:
        """Return the changes since the last call."""
        found = []
        if self.fingerprint() != self.before:
            found.append(f"files changed: {self.before} -> {self.fingerprint()}")
            self.before = self.fingerprint()
        for server in (self.tcp, self.unix, self.abstract):
            try:
                server.accept()[0].close()
                found.append(f"connected to {server.family.name}")
            except OSError:
                pass
        return found

    def close(self) -> None:
        for server in (self.tcp, self.unix, self.abstract):
            server.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def descendants(root: int | None = None) -> int:
    """Return the number of descendants of this process, without its own unreaped zombies."""
    root = root or os.getpid()
    parents: dict[int, tuple[int, str]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry)] = (int(fields[1]), fields[0])
    count, known = 0, {root}
    while True:
        new = {pid for pid, (parent, _) in parents.items() if parent in known and pid not in known}
        if not new:
            return count
        count += sum(1 for pid in new if parents[pid] != (root, "Z"))
        known |= new


def wait_until_at_most(measure: Any, limit: int, seconds: float = 30.0) -> int:
    """Wait until a count is at most `limit`, because killed processes take a moment to disappear; return the count."""
    deadline = time.monotonic() + seconds
    while (count := measure()) > limit and time.monotonic() < deadline:
        time.sleep(0.005)
    return count


def wait_until_stable(measure: Any, repeats: int = 20, seconds: float = 60.0) -> int:
    """Return a count once it has been the same `repeats` times in a row."""
    deadline = time.monotonic() + seconds
    count, times = measure(), 1
    while times < repeats and time.monotonic() < deadline:
        time.sleep(0.005)
        now = measure()
        count, times = now, times + 1 if now == count else 1
    return count


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def make_program(api: Any, fields: dict[str, Any], words: dict[str, str]) -> Any:
    """Read a `Program` from JSON and replace its @WORDS@."""

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            for word, text in words.items():
                value = value.replace(word, text)
            return value
        return [fill(item) for item in value] if isinstance(value, list) else value

    return api.Program.from_dict({key: fill(value) for key, value in fields.items()})


def main() -> None:
    options = json.loads(sys.argv[1])
    refuse(options.get("refuse", []))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    targets = AttackTargets()
    os.chdir(targets.folder)
    sys.path.insert(0, options.get("package", str(REPOSITORY)))
    import marl_ray.sandbox as api

    def write(answer: Any) -> None:
        print(json.dumps(answer, default=lambda o: asdict(o) if is_dataclass(o) else str(o)), flush=True)

    try:
        settings = {key: options[key] for key in ("isolation", "require", "allow_unsafe") if key in options}
        sandbox = api.Sandbox(api.SandboxSettings(**settings, limits=api.Limits(**options.get("limits", {}))))
        sandbox.start()
    except api.SandboxUnavailable as error:
        write({"unavailable": str(error)})
        targets.close()
        return
    words = targets.words()
    warm_up = make_program(api, {"program": "f = int", "tests": ["assert f(1) == 1"], "entry_point": "f"}, words)
    for _ in range(3):
        sandbox.run(warm_up)
    facts = {"level": sandbox.level, "describe": sandbox.describe(), "secret": targets.secret}
    write(facts | {"folder": str(targets.folder)})
    # The spare guest is forked shortly after a report, so wait for a stable count.
    processes, descriptors = wait_until_stable(descendants), open_descriptors()
    for line in sys.stdin:
        reports = sandbox.run_batch([make_program(api, fields, words) for fields in json.loads(line)])
        write(
            {
                "reports": [report.to_dict() for report in reports],
                "damage": targets.damage(),
                "processes": wait_until_at_most(descendants, processes) - processes,
                "descriptors": wait_until_at_most(open_descriptors, descriptors) - descriptors,
            }
        )
    sandbox.close()
    write({"processes": wait_until_at_most(descendants, 0), "damage": targets.damage()})
    targets.close()


if __name__ == "__main__":
    main()
