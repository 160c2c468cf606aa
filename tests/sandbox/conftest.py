"""Fixtures of the sandbox tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from marl_ray.sandbox import Limits, Sandbox, SandboxSettings, SandboxUnavailable


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """One sandbox at the best level of this machine, shared by all tests; skips the test where there is none.

    Tests that need other limits set them per program (`Program.limits`).
    """
    limits = Limits(test_cpu_s=5.0, test_wall_s=20.0, program_wall_s=60.0, memory_mb=512)
    try:
        with Sandbox(SandboxSettings(isolation="auto", limits=limits)) as running:
            yield running
    except SandboxUnavailable as error:
        pytest.skip(f"no isolation on this machine: {error}")
