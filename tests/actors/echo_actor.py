"""A small real actor for the tests of handles and the supervisor, and helpers to wait for processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from marl_ray.actors.handle import Actor, Deadline, Handle, wait_all
from marl_ray.actors.supervisor import ActorSpec, RestartLimits, Supervisor
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, PolicyId

SOON = Deadline(60.0, "start_s", "to answer")
TIMEOUT_S = 60.0


class Echo(Actor):
    """An actor whose starts fail once per file in `folder`."""

    def __init__(self, id: ActorId, folder: str) -> None:
        self.id = id
        self.folder = Path(folder)

    def start(self) -> list[str]:
        for failure in sorted(self.folder.iterdir()):
            failure.unlink()
            raise UserError(f"no model at {failure.name}")
        return [f"{self.id} is up"]

    def say(self, text: str) -> str:
        return text

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def fail(self) -> None:
        raise KeyError("a bug")

    def refuse(self, kind: type[UserError]) -> None:
        raise kind("give another\nmodel")

    def ask(self, others: list[Handle[Echo]], seconds: float) -> list[str]:
        calls = [other.call(Echo.say, "asked") for other in others]
        return [str(answer) for answer in wait_all(calls, Deadline(seconds, "sync_s", "to answer"))]

    def heartbeat(self) -> None:
        pass


@asynccontextmanager
async def echoes(
    folder: Path,
    count: int = 1,
    restarts: int = 0,
    kind: Any = "generator",
    heartbeat_s: float | None = None,
    remedy: str | None = None,
    **hooks: Any,
) -> AsyncIterator[Supervisor[Echo]]:
    """Create a supervisor of `count` echo actors; `hooks` are further arguments of `Supervisor`."""
    ids = [ActorId(kind, None if kind == "sandbox" else PolicyId((0,)), replica) for replica in range(count)]
    specs = [ActorSpec(id, Echo, (id, str(folder)), {"num_cpus": 0, "max_concurrency": 2}) for id in ids]
    supervisor = Supervisor(specs, RestartLimits(SOON, restarts, heartbeat_s, remedy), **hooks)
    try:
        yield supervisor
    finally:
        await supervisor.close()


async def until(condition: Any, what: str) -> None:
    """Wait until `condition()` is true. Fails after TIMEOUT_S."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, f"timed out waiting for {what}"
        await asyncio.sleep(0.02)


def process_of(handle: Handle[Any]) -> int:
    assert handle.location is not None
    return handle.location.process


def kill(handle: Handle[Any]) -> int:
    """Kill an actor's process and return its id."""
    process = process_of(handle)
    os.kill(process, signal.SIGKILL)
    return process


def wait_for_end(process: int) -> None:
    """Return when the process has ended. Raises psutil.TimeoutExpired."""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(process).wait(30)
