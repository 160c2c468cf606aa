"""The sandbox pool: order of reports, one run per distinct program, workers that die or hang, and secrets."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray")

from marl_ray.actors.handle import Handle  # noqa: E402
from marl_ray.actors.sandbox_pool import SandboxPool, SandboxWorker  # noqa: E402
from marl_ray.cluster.ray_private import init_on_localhost  # noqa: E402
from marl_ray.core.errors import UserError  # noqa: E402
from marl_ray.core.ids import ActorId  # noqa: E402
from marl_ray.sandbox import (  # noqa: E402
    ExecutionReport,
    Limits,
    Program,
    SandboxSettings,
    failed_report,
)
from tests.sandbox.benchmark_modules import sandbox_programs, sandbox_soak  # noqa: E402

SECRET = "SECRET-" + secrets.token_hex(12)
LIMITS = Limits(test_cpu_s=2.0, test_wall_s=10.0, program_wall_s=20.0)
TIMEOUT_S = 90.0


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A local Ray whose processes inherit a secret."""
    if ray.is_initialized():
        ray.shutdown()
    os.environ["MARL_RAY_TEST_API_KEY"] = SECRET
    try:
        init_on_localhost(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
        yield
        ray.shutdown()
    finally:
        del os.environ["MARL_RAY_TEST_API_KEY"]


@asynccontextmanager
async def pool_of(workers: int = 2, **options: Any) -> AsyncIterator[SandboxPool]:
    pool = SandboxPool(SandboxSettings(limits=LIMITS), workers, num_cpus_per_worker=0.5, **options)
    try:
        lines = await pool.start()
        assert len(lines) == 1, "one line per node"
        yield pool
    finally:
        await pool.close()


def numbered(number: int, sleep_s: float = 0.0) -> Program:
    source = f"import time\nprint({number})\ndef f():\n    time.sleep({sleep_s / 2})\n    return {number}\n"
    return Program(source, (f"assert f() == {number}", f"assert f() == {number % 3}"), "f")


def right(reports: list[ExecutionReport], numbers: list[int]) -> bool:
    """Return whether every report belongs to its program, which prints its number and passes one or two tests."""
    results = [(r.stdout.strip(), r.passed, r.total, r.infra_error) for r in reports]
    return results == [(str(n), 1 + (n < 3), 2, None) for n in numbers]


async def until(condition: Any, what: str, seconds: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        await asyncio.sleep(0.01)


def test_order_duplicates_and_cache() -> None:
    async def scenario() -> None:
        async with pool_of(batch_size=4, cache_size=8) as pool:
            numbers = [n % 20 for n in range(60)]
            reports = await pool.execute([numbered(n) for n in numbers])
            assert right(reports, numbers)
            assert pool.executions == 20, "equal programs run once"

            few = [numbered(n) for n in range(6)]
            await pool.execute(few)
            before = pool.executions
            assert right(await pool.execute(few), list(range(6)))
            assert pool.executions == before, "recent reports are cached"
            assert right(await pool.execute([numbered(n) for n in range(20)]), list(range(20)))
            assert pool.executions >= before + 12, "the cache is bounded"

            before = pool.executions
            twice = await asyncio.gather(*(pool.execute([numbered(99, 0.2)]) for _ in range(3)))
            assert pool.executions == before + 1, "a running program is not started again"
            assert all(right(reports, [99]) for reports in twice)

            same_source = Program(numbered(5).source, ("assert f() == 6",), "f")
            assert [r.passed for r in await pool.execute([same_source])] == [0], "the tests are part of the key"
            assert await pool.execute([]) == []

    asyncio.run(scenario())


def test_invalid_tests_are_rejected_before_any_program_runs() -> None:
    async def scenario() -> None:
        async with pool_of(1) as pool:
            with pytest.raises(ValueError, match="test"):
                await pool.execute([numbered(1), Program("def f(): pass", "def check(c): pass", "f")])
            with pytest.raises(TypeError, match=r"must be a marl_ray\.sandbox Program or None, not builtins:str"):
                await pool.execute([numbered(1), "def f(): pass"])  # type: ignore[list-item]
            assert pool.executions == 0

    asyncio.run(scenario())


def test_missing_isolation_is_reported_at_start() -> None:
    async def scenario() -> None:
        settings = SandboxSettings(isolation="auto", require="bwrap")
        pool = SandboxPool(settings, 1, num_cpus_per_worker=0.5, without=("bwrap",))
        with pytest.raises(
            UserError, match=r"^sandbox 0 on [\d.]+: no isolation is available here: bwrap: switched off"
        ):
            await pool.start()

    asyncio.run(scenario())
    assert sandbox_soak.wait_for_no_workers() == []


def test_hostile_programs_do_not_affect_other_programs() -> None:
    async def scenario() -> None:
        async with pool_of(batch_size=16) as pool:
            hostile = sandbox_programs.HOSTILE
            programs = []
            for number, source in enumerate(hostile.values()):
                tests = ("assert f(1, 1) == 'never'",)
                programs += [Program(source, tests, "f", limits=sandbox_programs.LIMITS), numbered(1000 + number)]
            reports = await pool.execute(programs)
            assert [r.passed for r in reports[::2]] == [0] * len(hostile)
            assert [r.infra_error for r in reports] == [None] * len(reports)
            assert right(reports[1::2], [1000 + n for n in range(len(hostile))])

    asyncio.run(scenario())


def test_a_dead_worker_is_replaced_and_its_programs_run_elsewhere() -> None:
    async def scenario() -> None:
        async with pool_of(batch_size=4) as pool:
            numbers = list(range(24))
            running = asyncio.create_task(pool.execute([numbered(n, 0.1) for n in numbers]))
            await until(lambda: pool.executions >= 1, "the first report")
            workers = sandbox_soak.worker_pids()
            assert len(workers) == 2
            descendants = sandbox_soak.descendants(workers[0])
            os.kill(workers[0], signal.SIGKILL)
            assert right(await asyncio.wait_for(running, TIMEOUT_S), numbers)
            await until(lambda: pool.workers.lost_count == 1, "the replacement")
            await until(lambda: len(set(sandbox_soak.worker_pids()) - {workers[0]}) == 2, "a second worker")
            await until(lambda: not any(map(is_alive, descendants)), "the dead worker's processes to end")
            assert right(await pool.execute([numbered(n) for n in range(50, 60)]), list(range(50, 60)))

    asyncio.run(scenario())


def test_a_program_survives_the_loss_of_all_workers_of_a_node() -> None:
    async def scenario() -> None:
        async with pool_of(workers=3) as pool:
            running = asyncio.create_task(pool.execute([numbered(7, 2.0)]))
            await until(lambda: pool.busy == 1, "the program to run")
            busy = next(iter(pool._busy))
            # The idle ones first, whose loss is not noticed.
            for worker in sorted(pool.workers.serving(), key=lambda worker: worker == busy):
                assert worker.location is not None
                os.kill(worker.location.process, signal.SIGKILL)
            assert right(await asyncio.wait_for(running, TIMEOUT_S), [7])
            assert pool.workers.lost_count == 3

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_stuck_worker_is_replaced() -> None:
    async def scenario() -> None:
        async with pool_of(batch_size=4, heartbeat_s=4.0) as pool:
            numbers = list(range(12))
            running = asyncio.create_task(pool.execute([numbered(n, 0.1) for n in numbers]))
            await until(lambda: pool._busy, "a worker with a batch")
            worker = next(iter(pool._busy))
            assert worker.location is not None
            stopped = worker.location.process
            descendants = sandbox_soak.descendants(stopped)
            os.kill(stopped, signal.SIGSTOP)
            try:
                assert right(await asyncio.wait_for(running, TIMEOUT_S), numbers)
                assert pool.workers.lost_count == 1
                await until(lambda: not is_alive(stopped), "the stuck worker to be killed")
                await until(lambda: not any(map(is_alive, descendants)), "its processes to end")
            finally:
                if is_alive(stopped):
                    os.kill(stopped, signal.SIGKILL)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_worker_with_a_slow_program_is_not_replaced() -> None:
    async def scenario() -> None:
        async with pool_of(heartbeat_s=3.0) as pool:
            assert right(await asyncio.wait_for(pool.execute([numbered(1, 7.0)]), TIMEOUT_S), [1])
            assert pool.workers.lost_count == 0
            running = asyncio.create_task(pool.execute([numbered(2, 7.0)]))
            await until(lambda: pool._busy, "a worker with the program")
            (worker,) = pool._busy
            await asyncio.sleep(4.0)  # it has answered heartbeats
            assert worker.location is not None
            stopped = worker.location.process
            os.kill(stopped, signal.SIGSTOP)
            try:
                assert right(await asyncio.wait_for(running, TIMEOUT_S), [2])
                assert pool.workers.lost_count == 1, "it was stuck while busy"
            finally:
                if is_alive(stopped):
                    os.kill(stopped, signal.SIGKILL)

    asyncio.run(scenario())


def test_lost_workers_are_not_reported_as_failures_of_programs() -> None:
    async def scenario() -> None:
        async with pool_of(1) as pool:
            running = asyncio.create_task(pool.execute([numbered(1, 1.0)]))
            for killed in range(2):
                await until(
                    lambda incarnation=killed + 1: [w.incarnation for w in pool.workers.serving()] == [incarnation],
                    "a worker",
                )
                (pid,) = sandbox_soak.worker_pids()
                os.kill(pid, signal.SIGKILL)
                await until(lambda pid=pid: not is_alive(pid), "its end")
            (report,) = await asyncio.wait_for(running, TIMEOUT_S)
            assert report.infra_error
            assert report.passed == 0
            assert "crash" not in {test.status for test in report.tests}
            again = await asyncio.wait_for(pool.execute([numbered(1, 1.0)]), TIMEOUT_S)
            assert right(again, [1]), "infrastructure errors are not cached"

    asyncio.run(scenario())


def test_closing_the_pool_answers_pending_callers() -> None:
    async def scenario() -> None:
        async with pool_of(1) as pool:
            running = asyncio.create_task(pool.execute([numbered(1, 5.0)]))
            await asyncio.sleep(0)
            await pool.close()
            (report,) = await asyncio.wait_for(running, 10)
            assert report.infra_error
            assert (pool.most_pending.take(), pool.most_pending.take()) == (1, 0)

    asyncio.run(scenario())
    assert sandbox_soak.wait_for_no_workers() == []


def test_programs_cannot_reach_secrets() -> None:
    source = (
        "import os, gc\nWORD = '-TERCES'[::-1]\ndef f(pids):\n    found = []\n"
        "    if WORD in repr(os.environ): found.append('environment')\n"
        "    for pid in pids:\n        for name in ('environ', 'cmdline', 'mem', 'maps'):\n"
        "            try: open(f'/proc/{pid}/{name}', 'rb').read(1)\n            except OSError: continue\n"
        "            found.append((pid, name))\n"
        "    return found\n"
    )

    async def scenario() -> None:
        async with pool_of(1) as pool:
            (worker,) = sandbox_soak.worker_pids()
            assert SECRET.encode() in Path(f"/proc/{worker}/environ").read_bytes(), "the worker itself has the secret"
            pids = [worker, os.getpid(), 1, *range(2, 30)]
            (report,) = await pool.execute([Program(source, (f"assert f({pids}) == []",), "f")])
            assert report.passed == 1, report.tests
            checked = 0
            for pid in sandbox_soak.descendants(worker):
                try:
                    texts = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline")]
                    links = links_of_ray(pid)
                except OSError:  # a guest that has ended
                    continue
                checked += 1
                assert all(SECRET.encode() not in text for text in texts)
                assert links == [], "sandboxed processes have no open files of Ray"
            assert checked >= 2, "zygote and judge at least"
            assert links_of_ray(worker), "the worker itself has such files"

    asyncio.run(scenario())


@pytest.mark.slow
def test_short_soak() -> None:
    async def scenario() -> None:
        async with pool_of(2) as pool:
            cases = list(sandbox_programs.mixture(500, hostile_share=0.1, seed=7))
            result = await sandbox_soak.soak(pool, cases, chunk=50)
            assert result.wrong == []
            assert result.infra_errors == result.replacements == 0
            assert result.hostile > 25
            assert result.after.processes <= result.before.processes
            assert result.after.descriptors <= result.before.descriptors + sandbox_soak.DESCRIPTORS_OF_RAY
            assert result.memory_growth < 0.25, "more than caches that are still filling"
            assert pool.executions == 500

    asyncio.run(scenario())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def links_of_ray(pid: int) -> list[str]:
    """Return open files and mapped memory of Ray: logs, sockets with a path, the object store."""
    links = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if "/ray" in link or "plasma" in link:
            links.append(link)
    maps = Path(f"/proc/{pid}/maps").read_text()
    return links + [line for line in maps.splitlines() if "plasma" in line or "_raylet" in line]


def test_a_program_with_an_infrastructure_error_is_retried_once_on_another_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The workers are stand-ins, because real sandboxes fail too rarely.
    workers = [Handle[SandboxWorker](ActorId("sandbox", None, number), None, incarnation=1) for number in range(2)]
    batches: list[tuple[int, list[str]]] = []

    async def run_batch(self: SandboxPool, worker: Handle[SandboxWorker], programs: list[Program]) -> list[Any]:
        batches.append((worker.id.replica, [program.source for program in programs]))
        failures = {"bad": "no memory", "unlucky": "no memory" if len(batches) == 1 else None}
        return [failed_report(p, "bwrap", infra_error=failures.get(p.source)) for p in programs]

    async def scenario() -> list[ExecutionReport]:
        pool = SandboxPool(SandboxSettings(), 2, batch_size=3)
        pool.workers.serving = lambda: workers  # type: ignore[method-assign]
        monkeypatch.setattr(SandboxPool, "_run_batch", run_batch)
        programs = [Program(source, ("assert f(1) == 1",), "f") for source in ("good", "bad", "unlucky")]
        pool._busy.add(workers[1])
        first = asyncio.ensure_future(pool.execute(programs))
        await until(lambda: len(batches) == 1, "the first batch")
        pool._busy.clear()
        pool._dispatch()
        reports = await first
        assert pool.executions == 2
        return reports

    good, bad, unlucky = asyncio.run(scenario())
    assert batches == [(0, ["good", "bad", "unlucky"]), (1, ["bad"]), (1, ["unlucky"])]
    assert (good.infra_error, unlucky.infra_error) == (None, None)
    assert bad.infra_error == "two sandbox workers failed, the last because: no memory"
