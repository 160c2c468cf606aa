"""Times by name."""

from __future__ import annotations

import asyncio

from marl_ray.core.stopwatch import Stopwatch


def test_what_is_side_by_side_counts_with_its_longest() -> None:
    watch = Stopwatch()

    async def measured(seconds: float) -> None:
        with watch.of("learn"):
            await asyncio.sleep(seconds)

    async def both() -> None:
        await asyncio.gather(measured(0.2), measured(0.01))

    with watch.of("step"):
        asyncio.run(both())
    assert 0.2 <= watch.seconds["learn"] <= watch.seconds["step"]
    with watch.of("learn"):
        pass
    assert watch.seconds["learn"] >= 0.2
