"""A folder of stand-ins that comes first on the PATH."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """A folder that goes first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder
