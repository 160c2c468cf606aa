"""Fixtures that tests of several packages share."""

from __future__ import annotations

import logging
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import marl_ray
from marl_ray.sandbox import Limits, Sandbox, SandboxSettings, SandboxUnavailable
from marl_ray.telemetry import logs

# Ray reads its token once per process. All tests of a process, in any order, use this one.
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

# Under nohup, and in background jobs of a script, tests of these signals would inherit that they are ignored.
for number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGHUP else signal.default_int_handler)


PLUGINS = Path(marl_ray.__file__).parent / "plugins"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test of the core that uses a plug-in which is not there."""
    for mark in item.iter_markers("plugins"):
        for name in mark.args:
            if not (PLUGINS / name).exists():
                pytest.skip(f"there is no plug-in {name}")


@pytest.fixture(autouse=True)
def console_logging() -> None:
    """Log records from INFO on appear on standard error, whatever level an earlier test has set."""
    logs.configure(logging.INFO)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Paths that this process has passed to fsync, in order, under the names that they had then."""
    found: list[Path] = []
    fsync = os.fsync

    def noted(file: int) -> None:
        fsync(file)
        found.append(Path(os.readlink(f"/proc/self/fd/{file}")))

    monkeypatch.setattr(os, "fsync", noted)
    return found


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """The best sandbox that this machine allows. One for the whole test session, with limits that honest tests keep."""
    limits = Limits(test_cpu_s=5.0, test_wall_s=20.0, program_wall_s=60.0, memory_mb=512)
    try:
        with Sandbox(SandboxSettings(isolation="auto", limits=limits)) as running:
            yield running
    except SandboxUnavailable as error:
        pytest.skip(f"no isolation on this machine: {error}")
