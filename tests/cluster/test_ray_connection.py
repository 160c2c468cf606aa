"""Errors of joining or starting Ray, and removal of its session folder."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from marl_ray.cluster import ray_connection
from marl_ray.cluster.ray_connection import connect, remove_session
from marl_ray.core.errors import UserError
from tests.factories import ROOT


def test_an_address_without_a_listener_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for name in (address, f"ray://{address}"):
            monkeypatch.setenv("RAY_ADDRESS", name)
            with pytest.raises(UserError, match=rf"^no Ray cluster can be joined at RAY_ADDRESS {name}: .*refused"):
                connect(verbose=False)


def test_the_host_of_an_ipv6_address_is_read_without_its_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET6) as taken:
        try:
            taken.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        address = f"[::1]:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UserError, match=rf"RAY_ADDRESS {re.escape(address)}: .*refused"):
            connect(verbose=False)


def test_a_listener_that_is_no_ray_head_is_a_one_line_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray itself would retry for two minutes.
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setattr(ray_connection, "FIRST_ANSWER_S", 2.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("RAY_ADDRESS", "{}:{}".format(*silent.getsockname()))
        begun = time.monotonic()
        with pytest.raises(
            UserError, match=r"^no Ray cluster can be joined at RAY_ADDRESS [\d.:]+: (no answer|no Ray head)"
        ):
            connect(verbose=False)
        assert time.monotonic() - begun < 25


def test_a_ray_that_does_not_start_in_time_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(**options: object) -> None:
        raise Exception("The current node timed out during startup. This could happen because")  # as Ray raises it

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setattr(ray, "init", slow)
    with pytest.raises(
        UserError, match=r"^Ray was not up after 3 attempts of 30 s each on this machine \(load \d+\): try again"
    ):
        connect(verbose=False)


CONNECT = """
import resource, sys
from marl_ray.cluster.ray_connection import UserError, connect
if "files" in sys.argv:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    connect(verbose=False)
except UserError as error:
    print(error)
"""


def run_program(text: str, *arguments: str, timeout: float, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program with additional environment `variables`, and without the ones that begin with RAY_."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | variables
    program = [sys.executable, "-c", text, *arguments]
    return subprocess.run(program, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "variable", "message"),
    [
        ("files", "MINE", "a process may open only 64 files here, and Ray needs 256: ulimit -n 4096"),
        ("path", "TMPDIR", "Ray cannot use its temporary folder: .*AF_UNIX path length .*: set RAY_TMPDIR to"),
        ("path", "RAY_TMPDIR", "Ray cannot use its temporary folder: .*AF_UNIX path length .*: set RAY_TMPDIR to"),
    ],
)
def test_a_machine_on_which_ray_cannot_start_is_a_one_line_error(
    limit: str, variable: str, message: str, tmp_path: Path
) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    ended = run_program(CONNECT, limit, timeout=120, **{variable: str(folder)})
    assert re.match(message, ended.stdout), ended
    assert ended.stdout.count("\n") == 1
    assert ended.returncode == 0


SLOW_AGENT = """
import os, sys, time
seen = os.path.join(os.path.dirname(__file__), "seen")
if any(part.endswith("dashboard/agent.py") for part in sys.orig_argv) and not os.path.exists(seen):
    open(seen, "w").close()
    time.sleep(60)
"""
"""Imported by every Python process. The first agent of Ray starts so late that its raylet ends itself."""
CONNECT_AND_LEAVE = """
import psutil, ray
from marl_ray.cluster.ray_connection import connect, disconnect
print(connect(verbose=False))
disconnect()
psutil.wait_procs(psutil.Process().children(recursive=True), timeout=30)
print(psutil.Process().children(recursive=True))
"""


@pytest.mark.slow
def test_a_start_that_fails_on_a_busy_machine_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_AGENT)
    ended = run_program(CONNECT_AND_LEAVE, timeout=180, PYTHONPATH=str(tmp_path))
    assert (tmp_path / "seen").exists()
    assert re.fullmatch(r"local Ray with \d+ CPUs\n\[\]\n", ended.stdout), ended
    assert "Ray was not up after 30 s: starting it again" in ended.stderr


BROKEN_AGENT = """
import sys
if any(part.endswith("dashboard/agent.py") for part in sys.orig_argv):
    sys.modules["google.rpc"] = None
"""
"""Imported by every Python process. An agent of Ray lacks a package."""


@pytest.mark.slow
def test_an_agent_that_cannot_be_imported_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN_AGENT)
    ended = run_program(CONNECT, timeout=90, PYTHONPATH=str(tmp_path))
    message = r"Ray cannot start: ModuleNotFoundError: .*google.rpc.* \(/.*agent\.log\)\. Install again, with .*\n"
    assert re.fullmatch(message, ended.stdout), ended
    assert "starting it again" not in ended.stderr


def test_removing_a_session_may_keep_ray_s_logs(tmp_path: Path) -> None:
    for name in ("logs", "tmp"):
        (tmp_path / "session_1" / name).mkdir(parents=True)
    (tmp_path / "session_latest").symlink_to(tmp_path / "session_1")
    remove_session(tmp_path / "session_1", keep_logs=True)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["logs", "session_1", "session_latest"]
    remove_session(tmp_path / "session_1", keep_logs=False)
    assert list(tmp_path.iterdir()) == []
