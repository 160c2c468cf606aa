"""A local Ray for a module of actor tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from marl_ray.cluster.ray_connection import connect, disconnect


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    connect(verbose=False)
    yield
    disconnect()
