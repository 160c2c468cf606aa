"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen]]:
    """Processes that a test starts; those still running afterwards are killed."""
    started: list[subprocess.Popen] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=30)
