"""Channels between programs: one program writes bits into state of the kernel, and the next one reads them."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marl_ray.sandbox.inside.isolation import access_times
from tests.sandbox.attacks.level_suite import REPOSITORY, VARIANTS, Host, Variant, host_of, why_not

SHARED_MOUNTS = (
    Variant("process+landlock, shared mounts", "process", "process+landlock", ("namespaces",)),
    Variant("process, shared mounts", "process", "process", ("landlock", "namespaces")),
)
READABLE = Path(os.environ.get("MARL_RAY_PACKAGE", REPOSITORY), "marl_ray", "sandbox", "inside")
FILES = sorted(map(str, READABLE.glob("*/*.py")))
FOLDERS = sorted(str(path) for path in READABLE.iterdir() if path.is_dir())

ATTEMPT = """
import os, fcntl, threading, time
def attempt(call, *arguments, **options):
    try:
        return call(*arguments, **options)
    except OSError:
        return None
"""
TIMES = "[getattr(attempt(os.stat, path, follow_symlinks=False), 'st_atime_ns', 0) for path in {paths}]"
NUMBERS = "[os.getpid(), os.getppid(), threading.get_native_id()]"
START_THREADS = """
for _ in range(64):
    thread = threading.Thread(target=time.sleep, args=(0,)); thread.start(); thread.join()
"""
CHANNELS = {
    "access times of files": ("\n".join(f"attempt(lambda: open({path!r}, 'rb').read())" for path in FILES), FILES),
    "access times of folders": ("\n".join(f"attempt(os.listdir, {path!r})" for path in FOLDERS), FOLDERS),
    "access times of links": ("attempt(os.stat, LINK); attempt(open, LINK)", ["LINK"]),
    "flags of the standard input": ("attempt(fcntl.fcntl, 0, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND)", None),
    "process numbers": (START_THREADS, None),
}
READERS = {
    "flags of the standard input": "fcntl.fcntl(0, fcntl.F_GETFL), attempt(os.lseek, 0, 0, 1)",
    "process numbers": NUMBERS,
}


@pytest.fixture
def link() -> Iterator[str]:
    """A symbolic link that every user can follow."""
    folder = Path(tempfile.mkdtemp(prefix="marl_ray_link_", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "link").symlink_to("/")
    yield str(folder / "link")
    shutil.rmtree(folder)


def make_due(path: str) -> None:
    """Set an access time so old that reading updates it."""
    old = time.time() - 3 * access_times.DAY_S
    os.utime(path, (old, os.lstat(path).st_mtime), follow_symlinks=False)


def started(variant: Variant, host: Host) -> Host:
    if "unavailable" in host.startup and (reason := why_not(variant)):
        pytest.skip(f"no {variant.name} on this machine: {reason}")
    assert host.startup.get("level") == variant.expected, host.startup
    return host


def printed(host: Host, *sources: str) -> list[str]:
    """Return the output of each program."""
    programs: list[dict[str, Any]] = [
        {"program": f"{ATTEMPT}\n{source}\ndef f(x): return x", "tests": ["assert f(1) == 1"], "entry_point": "f"}
        for source in sources
    ]
    reports = host.run(programs)["reports"]
    assert [report["passed"] for report in reports] == [1] * len(reports), reports
    return [report["stdout"] for report in reports]


@pytest.mark.parametrize("variant", [*VARIANTS, *SHARED_MOUNTS], ids=lambda variant: variant.name)
def test_a_program_leaves_nothing_that_the_next_program_can_read(variant: Variant, link: str) -> None:
    for path in [*FILES, *FOLDERS, link]:
        make_due(path)
    with host_of(variant) as host:
        started(variant, host)
        for name, (write, paths) in CHANNELS.items():
            paths = None if paths is None else [link if path == "LINK" else path for path in paths]
            read = READERS.get(name) or TIMES.format(paths=paths)
            first, _, second = printed(host, f"print({read})", write.replace("LINK", repr(link)), f"print({read})")
            assert first == second, f"{name} carry bits"


def test_files_are_read_before_a_guest_can_leave_a_bit_in_them(tmp_path: Path) -> None:
    (tmp_path / "due").write_text("text")
    make_due(str(tmp_path / "due"))
    began = time.time() - 1
    later = {Path(path).name: at for at, path in access_times.read_due_files([str(tmp_path)])}
    if (tmp_path / "due").stat().st_atime < began:
        pytest.skip("this file system updates no access times")
    assert later.keys() == {"due", tmp_path.name}
    assert all(at > began + access_times.DAY_S for at in later.values())


def test_files_are_read_again_in_the_second_in_which_they_become_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace the day by a second; the kernel's own day stays, so the second reading changes nothing."""
    path = tmp_path / "file"
    path.write_text("text")
    make_due(str(path))
    monkeypatch.setattr(access_times, "DAY_S", 1)
    later = access_times.read_due_files([str(path)])
    if not later:
        pytest.skip("this file system updates no access times")
    reader, writer = os.pipe()
    thread = threading.Thread(target=access_times.keep_reading, args=(later, reader))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert later == []
    os.close(reader)
    os.close(writer)
