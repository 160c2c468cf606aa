"""Fixtures of the deployment tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """An empty folder for stand-ins, which tests put first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder
