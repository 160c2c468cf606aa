"""Sandboxes on a Ray cluster: `SandboxPool`, and the actor that holds one sandbox. The only module here that
imports Ray.

    execute(programs) -> distinct by content -> in the cache? in flight? -> pending -> batches -> workers

| waits for | deadline | then |
|---|---|---|
| a worker's start | START_S | SandboxUnavailable names it; once running, another try, a few times |
| a worker's answer | `deadline_s` | the worker is replaced, the programs retried once |
| a slow program | twice its own limit and two restarts | the same |
| a program's report | the three above, twice | a report with `infra_error` |

A batch does not wait for its slowest program: a worker that is busy with one for PATIENCE_S, or with a batch for
SLICE_S, answers with what it has and hands back what it has not started, which then goes to whoever is free. So a
worker that is well answers within seconds, whatever the programs do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from marl_ray.actors.sandbox_worker import BatchResult, BatchWorker
from marl_ray.sandbox import ExecutionReport, Program, SandboxSettings, SandboxUnavailable, count_tests, failed_report

log = logging.getLogger(__name__)

START_S = 120.0
MAX_FAILED_STARTS = 4
RESTART_PAUSE_S = 2.0


class SandboxWorker(BatchWorker):
    """The actor: a worker that knows on which node it is."""

    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


@dataclass(slots=True, eq=False)
class _Item:
    """A distinct program in the pool; everybody who asks for it waits on the one future."""

    key: str
    program: Program
    future: asyncio.Future[ExecutionReport]
    failures: int = 0
    avoid: int | None = None
    """The worker that failed on it."""


@dataclass(slots=True, eq=False)
class _Slot:
    """A place for a worker. `life` counts the actors that have been in it."""

    index: int
    strategy: Any
    actor: Any = None
    life: int = 0
    ready: bool = False
    given_up: bool = False
    busy: int = 0
    held_up: bool = False
    """Busy with a slow program: nothing more is sent until that is over."""


@dataclass(slots=True)
class _Queues:
    fresh: deque[_Item] = field(default_factory=deque)
    retries: deque[_Item] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self.fresh) + len(self.retries)


class SandboxPool:
    """Sandbox workers as one. For use from a single event loop.

    `scheduling`: one Ray scheduling strategy per worker, or None to spread them. `in_flight`: calls per worker, so
    that one waits at the worker while one runs. `deadline_s`: for a worker's answer. `without`: see `Sandbox`.
    """

    def __init__(
        self,
        settings: SandboxSettings,
        num_workers: int,
        *,
        num_cpus_per_worker: float = 1.0,
        scheduling: list[Any] | None = None,
        batch_size: int = 16,
        in_flight: int = 2,
        cache_size: int = 4096,
        deadline_s: float = 60.0,
        without: tuple[str, ...] = (),
    ) -> None:
        if num_workers < 1 or batch_size < 1 or in_flight < 1:
            raise ValueError("a sandbox pool needs at least one worker, batch size 1 and one call in flight")
        if scheduling is not None and len(scheduling) != num_workers:
            raise ValueError(f"{len(scheduling)} scheduling strategies for {num_workers} sandbox workers")
        settings.candidates()  # contradictory settings are refused here, before any actor
        self._settings = settings
        self._without = without
        self._num_cpus = num_cpus_per_worker
        self._batch_size = batch_size
        self._in_flight = in_flight
        self._cache_size = cache_size
        self._deadline_s = deadline_s
        strategies = scheduling or ["SPREAD"] * num_workers
        self._slots = [_Slot(index, strategy) for index, strategy in enumerate(strategies)]
        self._queues = _Queues()
        self._open: dict[str, _Item] = {}
        self._cache: OrderedDict[str, ExecutionReport] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.executions = 0
        """Reports made by workers."""
        self.cache_hits = 0
        """Programs that did not need a run of their own: known already, in flight, or twice in one call."""
        self.replacements = 0
        """Workers that died or got stuck and were replaced."""

    # --- life ---

    async def start(self) -> list[str]:
        """Start all workers. -> one line per node. SandboxUnavailable if one of them cannot be had."""
        for slot in self._slots:
            self._create(slot)
        found = await asyncio.gather(*(self._await_start(slot) for slot in self._slots), return_exceptions=True)
        for slot, result in zip(self._slots, found, strict=True):
            if isinstance(result, BaseException):
                await self.close()
                raise SandboxUnavailable(f"sandbox worker {slot.index}: {_reason(result)}") from None
        nodes: dict[tuple[str, ...], int] = {}
        for result in found:
            assert not isinstance(result, BaseException)
            nodes[result] = nodes.get(result, 0) + 1
        return [f"{host}: {line}; workers: {count}" for (_, host, line), count in nodes.items()]

    async def close(self) -> None:
        """End all workers; whoever still waits gets a report with `infra_error`."""
        self._closed = True
        for slot in self._slots:
            self._kill(slot)
        self._fail_pending("the sandbox pool was closed")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for item in list(self._open.values()):
            self._resolve(item, self._infra(item, "the sandbox pool was closed"))

    def _create(self, slot: _Slot) -> None:
        options = {"num_cpus": self._num_cpus, "max_concurrency": self._in_flight + 2, "max_restarts": 0}
        actor_class = ray.remote(SandboxWorker).options(scheduling_strategy=slot.strategy, **options)
        slot.actor = actor_class.remote(self._settings, self._without)
        slot.life += 1
        slot.ready = slot.held_up = False
        slot.busy = 0

    async def _await_start(self, slot: _Slot) -> tuple[str, str, str]:
        host, line = await asyncio.wait_for(slot.actor.start.remote(), START_S)
        node = await asyncio.wait_for(slot.actor.node.remote(), START_S)
        slot.ready = True
        return node, host, line

    def _kill(self, slot: _Slot) -> None:
        actor, slot.actor, slot.ready = slot.actor, None, False
        if actor is not None:
            with contextlib.suppress(RayError):
                ray.kill(actor, no_restart=True)

    def _replace(self, slot: _Slot, life: int, why: str) -> None:
        """Put a new worker into a slot, unless that has been done since actor number `life`."""
        if self._closed or slot.life != life or not slot.ready:
            return
        log.warning("sandbox worker %d is replaced: %s", slot.index, why)
        self.replacements += 1
        self._kill(slot)
        self._background(self._restart(slot))

    async def _restart(self, slot: _Slot) -> None:
        reason = ""
        for attempt in range(MAX_FAILED_STARTS):
            await asyncio.sleep(RESTART_PAUSE_S * attempt)
            try:
                self._create(slot)
                await self._await_start(slot)
            except (RayError, SandboxUnavailable, TimeoutError) as error:
                reason = _reason(error)
                log.warning("sandbox worker %d does not start: %s", slot.index, reason)
                self._kill(slot)
            else:
                self._dispatch()
                return
        slot.given_up = True
        if all(other.given_up for other in self._slots):
            self._fail_pending(f"no sandbox worker is left: {reason}")

    def _background(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- programs ---

    async def execute(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        """Reports in the order of the programs, equal ones run once. ValueError, before any runs, on bad tests."""
        for program in programs:
            count_tests(program.tests, program.entry_point, program.form)
        waiting: list[ExecutionReport | asyncio.Future[ExecutionReport]] = []
        for program in programs:
            key = program.key
            known = self._cache.get(key)
            if known is not None:
                self._cache.move_to_end(key)
                self.cache_hits += 1
                waiting.append(known)
                continue
            item = self._open.get(key)
            if item is None:
                item = _Item(key, program, asyncio.get_running_loop().create_future())
                self._open[key] = item
                self._queues.fresh.append(item)
            else:
                self.cache_hits += 1
            waiting.append(item.future)
        if self._closed or all(slot.given_up for slot in self._slots):
            self._fail_pending("no sandbox worker is left")
        self._dispatch()
        # Shielded: another caller may wait for the same program when this one is cancelled.
        return [entry if isinstance(entry, ExecutionReport) else await asyncio.shield(entry) for entry in waiting]

    def _dispatch(self) -> None:
        """Hand pending programs to the least busy workers, until there is no more of either."""
        while self._queues:
            able = [slot for slot in self._slots if slot.ready and not slot.held_up and slot.busy < self._in_flight]
            for slot in sorted(able, key=lambda slot: slot.busy):
                items = self._next_batch(slot, len(able))
                if items:
                    slot.busy += 1
                    self._background(self._run_batch(slot, slot.life, items))
                    break
            else:
                return

    def _next_batch(self, slot: _Slot, workers: int) -> list[_Item]:
        """A retried program alone, so that it cannot take others down with it; else an even share of the fresh."""
        elsewhere = any(other.ready for other in self._slots if other is not slot)
        for item in self._queues.retries:
            if item.avoid != slot.index or not elsewhere:
                self._queues.retries.remove(item)
                return [item]
        fresh = self._queues.fresh
        size = min(self._batch_size, math.ceil(len(fresh) / workers))
        return [fresh.popleft() for _ in range(size)]

    async def _run_batch(self, slot: _Slot, life: int, items: list[_Item]) -> None:
        actor = slot.actor
        settled: set[int] = set()  # positions that this worker has reported on, or handed back

        def left() -> list[_Item]:
            return [item for position, item in enumerate(items) if position not in settled and not item.future.done()]

        try:
            programs = [item.program for item in items]
            result: BatchResult = await asyncio.wait_for(actor.run.remote(programs), self._deadline_s)
            self._take(slot, items, result, settled)
            settled.update(result.unstarted)
            if result.running is not None:
                slot.held_up = True
                for position in reversed(result.unstarted):
                    self._queues.fresh.appendleft(items[position])
                self._dispatch()
                async with asyncio.timeout(max(map(self._longest, programs))):
                    while result.running is not None:
                        result = await asyncio.wait_for(actor.finish.remote(result.running), self._deadline_s)
                        self._take(slot, items, result, settled)
            else:
                self._queues.fresh.extend(items[position] for position in result.unstarted)
            self._failed(slot, left(), "it gave no report")
        except Exception as error:  # whatever it is, those who wait for these programs must get an answer
            reason = _reason(error) if not isinstance(error, TimeoutError) else "no answer in time"
            self._failed(slot, left(), reason)
            self._replace(slot, life, reason)
        finally:
            if slot.life == life:
                slot.busy -= 1
                slot.held_up = False
        self._dispatch()

    def _longest(self, program: Program) -> float:
        """Seconds a worker may take for a program and the one behind it, each with two attempts and restarts."""
        return 4 * ((program.limits or self._settings.limits).program_wall_s + 40)

    def _take(self, slot: _Slot, items: list[_Item], result: BatchResult, settled: set[int]) -> None:
        """Its reports, those in `settled` left out: a worker repeats them in every answer."""
        for position, report in result.reports.items():
            item = items[position]
            if position in settled or item.future.done():
                continue
            settled.add(position)
            if report.infra_error is not None:
                self._failed(slot, [item], report.infra_error)
                continue
            self.executions += 1
            self._cache[item.key] = report
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
            self._resolve(item, report)

    def _failed(self, slot: _Slot, items: list[_Item], reason: str) -> None:
        """The worker failed on these: once more elsewhere, then it is reported, and never as the program's fault."""
        for item in items:
            if item in self._queues.retries or item in self._queues.fresh:
                continue
            item.failures += 1
            if item.failures > 1:
                self._resolve(item, self._infra(item, f"two sandbox workers failed, the last because: {reason}"))
            else:
                item.avoid = slot.index
                self._queues.retries.append(item)

    def _infra(self, item: _Item, reason: str) -> ExecutionReport:
        return failed_report(item.program, "", infra_error=reason)

    def _fail_pending(self, reason: str) -> None:
        for queue in (self._queues.fresh, self._queues.retries):
            while queue:
                item = queue.popleft()
                self._resolve(item, self._infra(item, reason))

    def _resolve(self, item: _Item, report: ExecutionReport) -> None:
        self._open.pop(item.key, None)
        if not item.future.done():
            item.future.set_result(report)


def _reason(error: BaseException) -> str:
    """One line on why a worker failed."""
    if isinstance(error, TimeoutError):
        return f"not started within {START_S:.0f} s (are the CPUs it asks for to be had?)"
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[-1] if lines else type(cause).__name__
