"""A pool of sandboxes in this process, for scoring without Ray."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Self

from marl_ray.core.errors import UserError
from marl_ray.sandbox import ExecutionReport, Program, Sandbox, SandboxSettings, SandboxUnavailable

Work = tuple[Program, "Future[ExecutionReport]"]


class LocalSandboxPool:
    """An `Executor` with `workers` sandboxes, each served by a thread.

    Leaving the context with an exception does not wait for running programs: the threads are daemons, and a sandbox's
    processes end with the process that started them.
    """

    def __init__(self, settings: SandboxSettings, workers: int) -> None:
        self._sandboxes = [Sandbox(settings) for _ in range(workers)]
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, args=(box,), daemon=True) for box in self._sandboxes]

    def __enter__(self) -> Self:
        """Start the sandboxes. Raises UserError if no acceptable isolation is available."""
        for sandbox in self._sandboxes:
            try:
                sandbox.start()
            except SandboxUnavailable as error:
                raise UserError(f"sandbox: {error}. See marl-ray sandbox doctor") from None
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for _ in self._threads:
            self._work.put(None)
        if kind is None:
            for thread, sandbox in zip(self._threads, self._sandboxes, strict=True):
                thread.join()
                sandbox.close()

    def describe(self) -> str:
        """Return the isolation of programs in one line."""
        return self._sandboxes[0].describe()

    async def execute(self, programs: Sequence[Any]) -> list[ExecutionReport]:
        """Return the reports in the order of the programs."""
        waiting: list[Future[ExecutionReport]] = []
        for program in programs:
            report: Future[ExecutionReport] = Future()
            self._work.put((program, report))
            waiting.append(report)
        return [await asyncio.wrap_future(report) for report in waiting]

    def _serve(self, sandbox: Sandbox) -> None:
        while (work := self._work.get()) is not None:
            program, report = work
            if not report.set_running_or_notify_cancel():
                continue
            try:
                report.set_result(sandbox.run(program))
            except Exception as error:  # passed to the waiting caller
                report.set_exception(error)
