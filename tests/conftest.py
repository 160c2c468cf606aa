"""What tests of several rooms ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files and folders that this process has brought to disk, under the names they had, in order."""
    found: list[Path] = []
    fsync = os.fsync

    def noted(file: int) -> None:
        fsync(file)
        found.append(Path(os.readlink(f"/proc/self/fd/{file}")))

    monkeypatch.setattr(os, "fsync", noted)
    return found
