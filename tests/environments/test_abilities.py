"""Abilities of environments that the rest of the package asks for."""

from __future__ import annotations

import asyncio
import logging

import pytest

from marl_ray.environments import abilities


class NeverCloses(abilities.HoldsResources):
    async def close(self) -> None:
        await asyncio.Event().wait()


def test_a_run_ends_although_an_environment_does_not_close(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abilities, "CLOSE_S", 0.1)
    with caplog.at_level(logging.WARNING):
        asyncio.run(abilities.close(NeverCloses()))  # type: ignore[arg-type]
    assert "timed out after 0.1 s waiting for NeverCloses.close: its resources may remain in use" in caplog.text
