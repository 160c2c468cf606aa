"""A policy small enough for exact comparisons."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.learning.builders import save_tiny_policy


@pytest.fixture(scope="package")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the tiny policy."""
    folder = tmp_path_factory.mktemp("tiny_policy")
    save_tiny_policy(folder)
    return folder
