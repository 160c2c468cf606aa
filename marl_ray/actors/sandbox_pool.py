"""Sandbox workers on a Ray cluster, as one pool.

    execute(programs) -> distinct programs -> cached? in flight? -> queue -> batches -> workers

A worker runs one small batch at a time, so few programs wait behind a slow one and the others go to any free worker. A
batch is limited by the limits of its programs and by heartbeats. Programs of a lost worker are retried once.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.actors.handle import Actor, ActorFailed, Deadline, Handle
from marl_ray.actors.supervisor import ActorSpec, RestartLimits, Supervisor
from marl_ray.core.concurrency import gather
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId
from marl_ray.core.peak import Peak
from marl_ray.sandbox import (
    ExecutionReport,
    Program,
    Sandbox,
    SandboxSettings,
    SandboxUnavailable,
    failed_report,
)

START = Deadline(120.0, "", "to start")
RESTART_S = 40.0
"""Time that a sandbox may take, beyond a program's own limit, to detect its own crash and restart."""


class SandboxWorker(Actor):
    """Ray actor: one sandbox, which runs programs one after another. A second thread answers heartbeats."""

    def __init__(self, settings: SandboxSettings, without: tuple[str, ...] = ()) -> None:
        self._sandbox = Sandbox(settings, without=without)

    def start(self) -> list[str]:
        """Start the sandbox. Raises UserError if the required isolation is unavailable on this node."""
        try:
            self._sandbox.start()
        except SandboxUnavailable as error:
            raise UserError(error) from None
        return [self._sandbox.describe()]

    def run(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        """Return the reports in the order of the programs."""
        return list(self._sandbox.run_each(programs))

    def heartbeat(self) -> None:
        """Return at once."""


@dataclass(slots=True, eq=False)
class _Item:
    """A distinct program in the pool, and the future that all its callers await."""

    key: str
    program: Program
    future: asyncio.Future[ExecutionReport]
    failed_worker: ActorId | None = None


class SandboxPool:
    """Sandbox workers as one pool, with a cache of `cache_size` reports. For use from a single event loop.

    Args:
        scheduling: one Ray scheduling strategy per worker; None spreads the workers over the nodes.
        start, restarts: limits of each worker (see `RestartLimits`).
        heartbeat_s: maximum seconds without a heartbeat of a busy worker.
        without: disabled isolation mechanisms (see `Sandbox`).
    """

    def __init__(
        self,
        settings: SandboxSettings,
        num_workers: int,
        *,
        num_cpus_per_worker: float = 1.0,
        scheduling: Sequence[Any] | None = None,
        batch_size: int = 8,
        cache_size: int = 4096,
        start: Deadline = START,
        restarts: int = 100,
        heartbeat_s: float = 60.0,
        without: tuple[str, ...] = (),
    ) -> None:
        if num_workers < 1 or batch_size < 1:
            raise ValueError("a sandbox pool needs at least one worker and batch size 1")
        settings.candidates()  # raises for contradictory settings, before any actor is created
        self._settings = settings
        self._heartbeat_s = heartbeat_s
        self._batch_size = batch_size
        self._cache_size = cache_size
        if scheduling is None:
            scheduling = ["SPREAD"] * num_workers
        specs = []
        for worker, strategy in zip(range(num_workers), scheduling, strict=True):
            options = {
                "num_cpus": num_cpus_per_worker,
                "scheduling_strategy": strategy,
                "max_concurrency": 2,  # `heartbeat` answers while `run` runs
            }
            id = ActorId("sandbox", None, worker)
            specs.append(ActorSpec(id, SandboxWorker, (settings, without), options))
        self.workers = Supervisor(specs, RestartLimits(start, restarts), on_change=self._dispatch)
        self._busy: set[Handle[SandboxWorker]] = set()
        self._new: deque[_Item] = deque()
        """Programs that no worker has run."""
        self._retries: deque[_Item] = deque()
        """Programs whose worker was lost."""
        self._pending: dict[str, _Item] = {}
        """All programs without a report, by key."""
        self.most_pending = Peak()
        self._cache: OrderedDict[str, ExecutionReport] = OrderedDict()
        """Reports by key, the least recently used first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.executions = 0
        """Number of reports made by workers."""
        self._taken = 0
        """Number of reports that `take_executions` has returned."""

    async def start(self) -> list[str]:
        """Start all workers and return one line per node. Raises UserError if one of them cannot start."""
        notes = await self.workers.start()
        workers_per_note: Counter[tuple[str, str, str]] = Counter()
        for worker, (note,) in zip(self.workers.serving(), notes, strict=True):
            assert worker.location is not None, "it has started"
            workers_per_note[worker.location.ip, worker.location.host, note] += 1
        return [f"{host}: {note}; workers: {count}" for (_, host, note), count in workers_per_note.items()]

    async def close(self) -> None:
        """End all workers. Pending callers receive a report with `infra_error`."""
        await self.workers.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for item in list(self._pending.values()):
            self._give_up(item, "the sandbox pool was closed")

    @property
    def pending(self) -> int:
        """Number of programs without a report."""
        return len(self._pending)

    @property
    def busy(self) -> int:
        """Number of workers that run programs."""
        return len(self._busy)

    def take_executions(self) -> int:
        """Return the number of reports made since the last call."""
        new = self.executions - self._taken
        self._taken = self.executions
        return new

    async def execute(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        """Return the reports in the order of the programs; equal programs run once.

        Raises ValueError for invalid tests and TypeError for an object that is no Program, before any program runs.
        """
        for program in programs:
            if not isinstance(program, Program):
                name = f"{type(program).__module__}:{type(program).__qualname__}"
                raise TypeError(f"an attempt's program must be a marl_ray.sandbox Program or None, not {name}")
            _ = program.number_of_tests  # raises; the workers receive the number with the program
        futures = [self._request(program) for program in programs]
        self._dispatch()
        # Shielded, because another caller may await the same program when this caller is cancelled.
        return [await asyncio.shield(future) for future in futures]

    def _request(self, program: Program) -> asyncio.Future[ExecutionReport]:
        """Return the future report of a program, which is queued if it is neither cached nor pending."""
        key = program.key
        future: asyncio.Future[ExecutionReport] = asyncio.get_running_loop().create_future()
        if key in self._cache:
            self._cache.move_to_end(key)
            future.set_result(self._cache[key])
            return future
        if key not in self._pending:
            self._pending[key] = _Item(key, program, future)
            self._new.append(self._pending[key])
            self.most_pending.note(self.pending)
        return self._pending[key].future

    def _dispatch(self) -> None:
        """Assign pending programs to free workers, until either runs out."""
        if self.workers.exhausted():
            while queue := self._retries or self._new:
                self._give_up(queue.popleft(), f"no sandbox worker is left: {self.workers.last_failure}")
        free = [worker for worker in self.workers.serving() if worker not in self._busy]
        for number, worker in enumerate(free):
            items = self._next_batch(worker, len(free) - number)
            if items:
                self._busy.add(worker)
                task = asyncio.get_running_loop().create_task(self._run(worker, items))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _next_batch(self, worker: Handle[SandboxWorker], free: int) -> list[_Item]:
        """Return a single retried program, which might crash the worker, or an even share of the new programs."""
        is_alone = self.workers.serving() == [worker]
        for item in self._retries:
            if item.failed_worker != worker.id or is_alone:
                self._retries.remove(item)
                return [item]
        size = min(self._batch_size, math.ceil(len(self._new) / free))
        return [self._new.popleft() for _ in range(size)]

    async def _run(self, worker: Handle[SandboxWorker], items: list[_Item]) -> None:
        try:
            reports = await self._run_batch(worker, [item.program for item in items])
            for item, report in zip(items, reports, strict=True):
                if report.infra_error is not None:
                    self._retry(worker, item, report.infra_error)
                    continue
                self.executions += 1
                self._cache[item.key] = report
                while len(self._cache) > self._cache_size:
                    self._cache.popitem(last=False)
                self._resolve(item, report)
        except Exception as error:  # callers of these programs must get an answer for any error
            # Before the retries, which would fail on an idle worker that was lost with the same node.
            await self._check_neighbours(worker)
            for item in items:
                self._retry(worker, item, str(error))
            self.workers.report_lost(worker, str(error))
        finally:
            self._busy.discard(worker)
        self._dispatch()

    async def _check_neighbours(self, lost: Handle[SandboxWorker]) -> None:
        """Report the idle workers on the node of a lost one that do not answer a heartbeat."""
        checks = []
        for other in self.workers.serving():
            if other != lost and other not in self._busy and _node(other) == _node(lost):
                checks.append(self._check(other))
        await gather(*checks)

    async def _check(self, worker: Handle[SandboxWorker]) -> None:
        try:
            await self._heartbeat(worker)
        except (ActorFailed, UserError) as error:
            self.workers.report_lost(worker, str(error))

    async def _heartbeat(self, worker: Handle[SandboxWorker]) -> None:
        """Wait for an answer of a worker. Raises an error if it is lost."""
        deadline = Deadline(self._heartbeat_s, "heartbeat_s", "to answer a heartbeat")
        await worker.call(SandboxWorker.heartbeat).within(deadline)

    async def _run_batch(self, worker: Handle[SandboxWorker], programs: list[Program]) -> list[ExecutionReport]:
        """Return a batch's reports, as long as the worker answers heartbeats."""
        deadline = Deadline(sum(map(self._max_seconds, programs)), "", "to run its programs")
        reports = asyncio.ensure_future(worker.call(SandboxWorker.run, programs).within(deadline))
        try:
            while True:
                await asyncio.wait({reports}, timeout=self._heartbeat_s)
                if reports.done():
                    return reports.result()
                await self._heartbeat(worker)
        finally:
            reports.cancel()

    def _max_seconds(self, program: Program) -> float:
        """Return the maximum time of a program on a worker: two attempts, each limited by the sandbox."""
        limits = program.limits or self._settings.limits
        # Visible tests run in an execution of their own.
        executions = 2 if program.visible else 1
        return 2 * (executions * limits.program_wall_s + RESTART_S)

    def _retry(self, worker: Handle[SandboxWorker], item: _Item, reason: str) -> None:
        """Retry a program once on another worker, then report an infrastructure error."""
        if item.failed_worker is not None:
            self._give_up(item, f"two sandbox workers failed, the last because: {reason}")
        else:
            item.failed_worker = worker.id
            self._retries.append(item)

    def _give_up(self, item: _Item, reason: str) -> None:
        self._resolve(item, failed_report(item.program, "", infra_error=reason))

    def _resolve(self, item: _Item, report: ExecutionReport) -> None:
        self._pending.pop(item.key, None)
        self.most_pending.note(self.pending)
        if not item.future.done():
            item.future.set_result(report)


def _node(worker: Handle[SandboxWorker]) -> str:
    """Return the address of the node of a worker that has started."""
    assert worker.location is not None
    return worker.location.ip
