"""Lower bounds on the sandbox's speed; benchmarks/sandbox_throughput.py measures the figures and has the targets.

Every round measures all methods in turn, and the test compares medians of ratios within rounds, so that a busy machine
slows both sides. The bounds are far below the figures of docs/explanation/sandbox.md, since processors and their load
differ: a program took 3.5 to 8 times as long as a fork, and the library ran 1.8 to 4 times as many programs as fresh
interpreters did. The bounds detect a lost optimisation: an interpreter started per program, or a Ray call per program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from marl_ray.sandbox import Program, Sandbox, SandboxSettings
from tests.sandbox.benchmark_modules import sandbox_throughput

pytestmark = pytest.mark.slow

LIBRARY_VS_FRESH = 1.3
RAY_VS_LIBRARY = 0.5
LATENCY_VS_FORK = 20.0


def test_library_and_ray_workers_are_not_slower_than_the_bounds() -> None:
    ray = pytest.importorskip("ray")
    from marl_ray.actors.sandbox_pool import SandboxPool
    from marl_ray.cluster.ray_private import init_on_localhost

    async def scenario() -> dict[str, float]:
        settings = SandboxSettings()
        pool = SandboxPool(settings, 2, num_cpus_per_worker=0.5)
        await pool.start()
        loop = asyncio.get_running_loop()

        def execute(batch: Sequence[Program]) -> list[int]:
            reports = asyncio.run_coroutine_threadsafe(pool.execute(batch), loop).result()
            return [report.passed for report in reports]

        sandboxes = [Sandbox(settings), Sandbox(settings)]
        try:
            for sandbox in sandboxes:
                sandbox.start()
            rounds = await asyncio.to_thread(sandbox_throughput.measure, sandboxes, execute, rounds=5, per_worker=80)
        finally:
            for sandbox in sandboxes:
                sandbox.close()
            await pool.close()
        return dict(sandbox_throughput.summary(rounds))

    if ray.is_initialized():
        ray.shutdown()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # else Ray's workers have the lowest priority on a busy machine
        init_on_localhost(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
        try:
            figures = asyncio.run(scenario())
        finally:
            ray.shutdown()
    assert figures["library_vs_fresh"] >= LIBRARY_VS_FRESH, figures
    assert figures["ray_vs_library"] >= RAY_VS_LIBRARY, figures
    assert figures["latency_vs_fork"] <= LATENCY_VS_FORK, figures
