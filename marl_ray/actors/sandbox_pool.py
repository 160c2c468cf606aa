"""Sandbox workers on a Ray cluster, as one.

    execute(programs) -> distinct by content -> in the cache? in flight? -> pending -> batches -> workers

| waits for | deadline | then |
|---|---|---|
| a worker's start | `start` | the start fails and names it; once running, further tries: see the supervisor |
| a sign of life of a busy worker | `deadline_s` | the worker is replaced, the programs retried once |
| a batch | what its programs may take, each tried twice | the same |
| a program's report | the two above, twice | a report with `infra_error` |

A worker has one small batch at a time: little waits behind a slow program, and all else goes to whoever is free.
Workers that took two batches of 16 and handed back what a slow program held up earned too little: of 64 programs on
two workers, 4 of them endless, the last of the others came after 12.4 s instead of 12.9, all after 14.0 instead of
12.9; without slow ones they made 6 % more programs a second (medians, taking turns in one run on a busy machine).
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.actors.handle import Deadline, Handle
from marl_ray.actors.sandbox_worker import SandboxWorker
from marl_ray.actors.supervisor import ActorSpec, RestartPolicy, Supervisor
from marl_ray.core.ids import ActorId
from marl_ray.sandbox import ExecutionReport, Program, SandboxSettings, count_tests, failed_report

RESTARTS = 100
START = Deadline(120.0, "", "to start")
RESTART_S = 40.0
"""What a sandbox may take, besides a program's own limit, to notice that it has died and to start again."""


@dataclass(slots=True, eq=False)
class _Item:
    """A distinct program in the pool; everybody who asks for it waits on the one future."""

    key: str
    program: Program
    future: asyncio.Future[ExecutionReport]
    failures: int = 0
    avoid: ActorId | None = None
    """The worker that failed on it."""


class SandboxPool:
    """Sandbox workers as one. For use from a single event loop.

    `scheduling`: one Ray scheduling strategy a worker, or None to spread them. `restarts`: see `RestartPolicy`. `deadline_s`:
    for a sign of life. `without`: see `Sandbox`.
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
        restarts: int = RESTARTS,
        deadline_s: float = 60.0,
        without: tuple[str, ...] = (),
    ) -> None:
        if num_workers < 1 or batch_size < 1:
            raise ValueError("a sandbox pool needs at least one worker and batch size 1")
        settings.candidates()  # contradictory settings are refused here, before any actor
        self._settings = settings
        self._batch_size = batch_size
        self._cache_size = cache_size
        self._deadline_s = deadline_s
        recipes = [
            ActorSpec(
                ActorId("sandbox", None, worker),
                SandboxWorker,
                (settings, without),
                {
                    "num_cpus": num_cpus_per_worker,
                    "max_concurrency": 2,  # `alive` answers while `run` runs
                    "scheduling_strategy": strategy,
                },
            )
            for worker, strategy in zip(range(num_workers), scheduling or ["SPREAD"] * num_workers, strict=True)
        ]
        self.workers = Supervisor(recipes, RestartPolicy(start, restarts), self._dispatch)
        self._busy: set[Handle[SandboxWorker]] = set()
        self._fresh: deque[_Item] = deque()
        self._retries: deque[_Item] = deque()
        self._open: dict[str, _Item] = {}
        self._cache: OrderedDict[str, ExecutionReport] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self.executions = 0
        """Reports made by workers."""
        self._taken = 0

    async def start(self) -> list[str]:
        """Start all workers; returns one line a node. Raises UserError if one of them cannot be had."""
        notes = await self.workers.start()
        locations = [worker.location for worker in self.workers.serving()]
        nodes = Counter((at.ip, at.host, *lines) for at, lines in zip(locations, notes, strict=True) if at is not None)
        return [f"{host}: {note}; workers: {count}" for (_, host, note), count in nodes.items()]

    async def close(self) -> None:
        """End all workers; whoever still waits gets a report with `infra_error`."""
        await self.workers.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for item in list(self._open.values()):
            self._give_up(item, "the sandbox pool was closed")

    def take_executions(self) -> int:
        """Reports that workers have made since this was last asked."""
        new, self._taken = self.executions - self._taken, self.executions
        return new

    async def execute(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        """Reports in the order of the programs, equal ones run once. Raises ValueError for bad tests and TypeError
        for what is no Program, before any runs."""
        for program in programs:
            if not isinstance(program, Program):
                what = f"{type(program).__module__}:{type(program).__qualname__}"
                raise TypeError(f"an attempt's program must be a marl_ray.sandbox Program or None, not {what}")
            count_tests(program.tests, program.entry_point, program.form)
        waiting: list[ExecutionReport | asyncio.Future[ExecutionReport]] = []
        for program in programs:
            key = program.key
            known = self._cache.get(key)
            if known is not None:
                self._cache.move_to_end(key)
                waiting.append(known)
                continue
            item = self._open.get(key)
            if item is None:
                item = _Item(key, program, asyncio.get_running_loop().create_future())
                self._open[key] = item
                self._fresh.append(item)
            waiting.append(item.future)
        self._dispatch()
        # Shielded: another caller may wait for the same program when this one is cancelled.
        return [entry if isinstance(entry, ExecutionReport) else await asyncio.shield(entry) for entry in waiting]

    def _dispatch(self) -> None:
        """Hand pending programs to free workers, until there is no more of either."""
        if self.workers.exhausted():
            while queue := self._retries or self._fresh:
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
        """A retried program alone, so that it cannot take others down with it; else an even share of the fresh."""
        elsewhere = any(other is not worker for other in self.workers.serving())
        for item in self._retries:
            if item.avoid != worker.id or not elsewhere:
                self._retries.remove(item)
                return [item]
        size = min(self._batch_size, math.ceil(len(self._fresh) / free))
        return [self._fresh.popleft() for _ in range(size)]

    async def _run(self, worker: Handle[SandboxWorker], items: list[_Item]) -> None:
        try:
            reports = await self._answer(worker, [item.program for item in items])
            for item, report in zip(items, reports, strict=True):
                self._take(worker, item, report)
        except Exception as error:  # whatever it is, those who wait for these programs must get an answer
            for item in items:
                self._failed(worker, item, str(error))
            self.workers.report_lost(worker, str(error))
        finally:
            self._busy.discard(worker)
        self._dispatch()

    async def _answer(self, worker: Handle[SandboxWorker], programs: list[Program]) -> list[ExecutionReport]:
        """A batch's reports, as long as the worker gives signs of life."""
        deadline = Deadline(sum(map(self._longest, programs)), "", "to run its programs")
        answer = asyncio.ensure_future(worker.call(SandboxWorker.run, programs).within(deadline))
        try:
            while not (await asyncio.wait({answer}, timeout=self._deadline_s))[0]:
                alive = Deadline(self._deadline_s, "heartbeat_s", "to give a sign of life")
                await worker.call(SandboxWorker.alive).within(alive)
            return answer.result()
        finally:
            answer.cancel()

    def _longest(self, program: Program) -> float:
        """Seconds that a worker may take for a program: two tries, each ended by the sandbox itself."""
        wall_s = (program.limits or self._settings.limits).program_wall_s
        return 2 * ((2 if program.visible else 1) * wall_s + RESTART_S)

    def _take(self, worker: Handle[SandboxWorker], item: _Item, report: ExecutionReport) -> None:
        if report.infra_error is not None:
            self._failed(worker, item, report.infra_error)
            return
        self.executions += 1
        self._cache[item.key] = report
        while len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        self._resolve(item, report)

    def _failed(self, worker: Handle[SandboxWorker], item: _Item, reason: str) -> None:
        """The worker failed on it: once more elsewhere, then it is reported, and never as the program's fault."""
        item.failures += 1
        if item.failures > 1:
            self._give_up(item, f"two sandbox workers failed, the last because: {reason}")
        else:
            item.avoid = worker.id
            self._retries.append(item)

    def _give_up(self, item: _Item, reason: str) -> None:
        self._resolve(item, failed_report(item.program, "", infra_error=reason))

    def _resolve(self, item: _Item, report: ExecutionReport) -> None:
        self._open.pop(item.key, None)
        if not item.future.done():
            item.future.set_result(report)
