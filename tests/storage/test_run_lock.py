"""The run lock admits one living writer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marl_ray.core.errors import UserError
from marl_ray.storage.run_lock import hold_lock

HOLDER = """
import os, signal, subprocess, sys
from pathlib import Path
from marl_ray.storage.run_lock import hold_lock

with hold_lock(Path(sys.argv[1])):
    started = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, close_fds=False)
    ready, there = os.pipe()
    forked = os.fork()
    if forked == 0:
        os.close(1)
        os.write(there, b"x")
        signal.pause()
    os.read(ready, 1)
    print(started.pid, forked, flush=True)
    sys.stdin.read()
"""
"""Holds a lock until its standard input ends. Its children, one executed and one forked, keep running."""


class Holder:
    """A process that holds the lock, with its children."""

    def __init__(self, path: Path) -> None:
        arguments = [sys.executable, "-c", HOLDER, str(path)]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.children = [int(word) for word in self.process.stdout.readline().split()]
        assert len(self.children) == 2


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    found = Holder(tmp_path / "run.lock")
    yield found
    for pid in found.children:
        os.kill(pid, signal.SIGKILL)  # they are alive still
    found.process.kill()
    with found.process:  # closes the pipes and waits
        pass


def test_a_second_writer_gets_the_name_of_the_holder(holder: Holder, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused, hold_lock(tmp_path / "run.lock"):
        pass
    who = rf"process {holder.process.pid} on {socket.gethostname()} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert refused.match(rf"^{tmp_path} is being written by {who} \w+: wait for its end, or set another")


def test_the_lock_is_free_when_its_holder_is_killed_while_children_run(holder: Holder, tmp_path: Path) -> None:
    holder.process.kill()
    holder.process.wait(timeout=30)
    for pid in holder.children:
        os.kill(pid, 0)
    with hold_lock(tmp_path / "run.lock"):
        assert f"process {os.getpid()} " in (tmp_path / "run.lock").read_text()


def test_the_lock_file_is_deleted_at_the_end(holder: Holder, tmp_path: Path) -> None:
    assert holder.process.stdin is not None
    holder.process.stdin.close()
    assert holder.process.wait(timeout=30) == 0
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        with hold_lock(tmp_path / "run.lock"):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_file_deleted_by_its_holder_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The holder ends between opening and locking the file.
    path, flock = tmp_path / "run.lock", fcntl.flock

    def late(file: int, how: int) -> None:
        if not (tmp_path / "first").exists():
            (tmp_path / "first").touch()
            path.unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with hold_lock(path), pytest.raises(UserError, match=f"process {os.getpid()} on"), hold_lock(path):
        pass


def test_a_file_system_without_locks_gives_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with hold_lock(tmp_path / "run.lock"):
        assert (tmp_path / "run.lock").exists()
    message = f"{tmp_path} cannot be locked (No locks available): see to it that no other run writes there"
    assert capsys.readouterr().err == f"warning: {message}\n"


def test_a_full_disk_does_not_prevent_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        lock, refused = hold_lock(tmp_path / "run.lock"), pytest.raises(UserError, match="is being written by another")
        with lock, refused, hold_lock(tmp_path / "run.lock"):
            pass
