"""A small real actor for the tests of handles and of the supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from marl_ray.actors.handle import Actor, Deadline, Handle, settle
from marl_ray.actors.supervisor import ActorSpec, RestartPolicy, Supervisor
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, PolicyId

SOON = Deadline(60.0, "start_s", "to answer")
PATIENCE = 60.0


class Echo(Actor):
    """`folder` has a file for each start that is to fail."""

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

    def stumble(self) -> None:
        raise KeyError("a bug")

    def refuse(self) -> None:
        raise UserError("give another\nmodel")

    def ask(self, others: list[Handle[Echo]], seconds: float) -> list[str]:
        calls = [other.call(Echo.say, "asked") for other in others]
        return [str(answer) for answer in settle(calls, Deadline(seconds, "sync_s", "to answer"))]

    def alive(self) -> None:
        pass


@asynccontextmanager
async def echoes(
    folder: Path, count: int = 1, restarts: int = 0, kind: Any = "generator", heartbeat_s: float | None = None
) -> AsyncIterator[Supervisor[Echo]]:
    names = [ActorId(kind, None if kind == "sandbox" else PolicyId((0,)), replica) for replica in range(count)]
    recipes = [ActorSpec(name, Echo, (name, str(folder)), {"num_cpus": 0, "max_concurrency": 2}) for name in names]
    supervisor = Supervisor(recipes, RestartPolicy(SOON, restarts, heartbeat_s))
    try:
        yield supervisor
    finally:
        await supervisor.close()


async def until(condition: Any, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        await asyncio.sleep(0.02)


def process_of(handle: Handle[Any]) -> int:
    assert handle.location is not None
    return handle.location.process


def gone(process: int) -> None:
    """Returns when there is no such process any more. Raises psutil.TimeoutExpired."""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(process).wait(30)
