"""Fixtures of the sandbox's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from marl_ray.sandbox import Limits, Sandbox, SandboxSettings, SandboxUnavailable


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """The best sandbox this machine allows, with limits for tests that are expected to end."""
    limits = Limits(test_cpu_s=5.0, test_wall_s=20.0, program_wall_s=60.0, memory_mb=512)
    try:
        with Sandbox(SandboxSettings(isolation="auto", limits=limits)) as running:
            yield running
    except SandboxUnavailable as error:
        pytest.skip(f"no isolation on this machine: {error}")
