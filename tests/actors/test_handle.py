"""Handles and the supervisor, with small real actors: who is named, and what becomes of those that are lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from marl_ray.actors import supervisor as supervisor_module
from marl_ray.actors.handle import Actor, ActorDied, ActorFailed, Deadline, Handle, wait_for
from marl_ray.actors.supervisor import Recipe, Supervisor
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId
from marl_ray.core.waiting import WaitExpired

SOON = Deadline(60.0, "start_s", "to answer")
PATIENCE = 60.0

pytestmark = pytest.mark.usefixtures("local_ray")


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
        return wait_for([other.call(Echo.say, "asked") for other in others], Deadline(seconds, "sync_s", "to answer"))


@asynccontextmanager
async def echoes(folder: Path, count: int = 1, restarts: int = 0, kind: Any = "generator") -> AsyncIterator[Any]:
    names = [ActorId(kind, None if kind == "sandbox" else 0, replica) for replica in range(count)]
    recipes = [Recipe(name, Echo, (name, str(folder)), {"num_cpus": 0}) for name in names]
    changes: list[int] = []
    supervisor = Supervisor(recipes, SOON, restarts, lambda: changes.append(1))
    supervisor.changes = changes  # type: ignore[attr-defined]
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
    assert handle.place is not None
    return handle.place.process


def test_what_goes_wrong_in_an_actor_names_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with echoes(tmp_path) as supervisor:
            assert await supervisor.start() == [["agent 0 generator 0 is up"]]
            (echo,) = supervisor.serving()
            where = rf"process {process_of(echo)} on [\d.]+"
            assert await echo.call(Echo.say, "hello").within(SOON) == "hello"
            with pytest.raises(UserError, match=r"^agent 0 generator 0 on [\d.]+: give another model$"):
                await echo.call(Echo.refuse).within(SOON)
            with pytest.raises(ActorFailed, match=rf"^agent 0 generator 0 \({where}\) failed in stumble: KeyError: "):
                await echo.call(Echo.stumble).within(SOON)
            with pytest.raises(WaitExpired, match=r"^waited 0.1 s for agent 0 generator 0 to nap, in vain \(.*sync_s"):
                await echo.call(Echo.wait, 1.0).within(Deadline(0.1, "sync_s", "to nap"))
            os.kill(process_of(echo), signal.SIGKILL)
            with pytest.raises(ActorDied, match=rf"^agent 0 generator 0 died \({where}\); --resume goes on$"):
                await echo.call(Echo.say, "hello").within(SOON)

    asyncio.run(scenario())


def test_a_bug_keeps_the_remote_traceback(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with echoes(tmp_path) as supervisor:
            await supervisor.start()
            await supervisor.serving()[0].call(Echo.stumble).within(SOON)

    with pytest.raises(ActorFailed) as it:
        asyncio.run(scenario())
    assert 'raise KeyError("a bug")' in str(it.value.__cause__)


def test_actors_that_wait_for_actors_name_those(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with echoes(tmp_path, count=3) as supervisor:
            await supervisor.start()
            asking, busy, dead = supervisor.serving()
            assert await asking.call(Echo.ask, [busy, dead], 60.0).within(SOON) == ["asked", "asked"]
            nap = busy.call(Echo.wait, 3.0)
            with pytest.raises(WaitExpired, match=r"^waited 0.5 s for agent 0 generator 1 to answer, in vain"):
                await asking.call(Echo.ask, [dead, busy], 0.5).within(SOON)
            os.kill(process_of(dead), signal.SIGKILL)
            begun = time.monotonic()
            with pytest.raises(ActorDied, match=r"^agent 0 generator 2 died \(process"):
                await asking.call(Echo.ask, [busy, dead], 60.0).within(SOON)
            assert time.monotonic() - begun < 60, "not after the wait for the other one"
            await nap.within(SOON)

    asyncio.run(scenario())


def test_where_one_does_not_start_all_are_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "here").touch()
        async with echoes(tmp_path, count=2) as supervisor:
            with pytest.raises(UserError, match=r"^agent 0 generator [01] on [\d.]+: no model at here$"):
                await supervisor.start()
            assert supervisor.serving() == []
            assert supervisor.exhausted()

    asyncio.run(scenario())


def test_a_lost_actor_is_replaced_once_for_each_life(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with echoes(tmp_path, restarts=2, kind="sandbox") as supervisor:
            await supervisor.start()
            (first,) = supervisor.serving()
            assert (str(first.id), first.life) == ("sandbox 0", 1)
            os.kill(process_of(first), signal.SIGKILL)
            with pytest.raises(ActorDied, match=r"^sandbox 0 died \(process \d+ on [\d.]+\)$"):
                await first.call(Echo.say, "hello").within(SOON)
            supervisor.lose(first, "it died")
            supervisor.lose(first, "said twice")
            assert supervisor.serving() == []
            await until(supervisor.serving, "the next life")
            (second,) = supervisor.serving()
            assert (second.id, second.life) == (first.id, 2)
            assert await second.call(Echo.say, "hello").within(SOON) == "hello"
            supervisor.lose(first, "an old life")
            assert supervisor.serving() == [second]
            assert (supervisor.losses, len(supervisor.changes)) == (1, 1)

    asyncio.run(scenario())


def test_starts_in_vain_are_tried_again_and_then_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RESTART_PAUSE_S", 0.1)

    async def scenario() -> None:
        async with echoes(tmp_path, restarts=2, kind="sandbox") as supervisor:
            await supervisor.start()
            (tmp_path / "nowhere").touch()
            supervisor.lose(supervisor.serving()[0], "for the test")
            await until(supervisor.serving, "the second try")
            (third,) = supervisor.serving()
            assert third.life == 3, "the second did not start"
            assert not supervisor.exhausted()
            for name in ("a", "b"):
                (tmp_path / name).touch()
            supervisor.lose(third, "for the test")
            await until(supervisor.exhausted, "the end of its tries")
            assert supervisor.last_failure.endswith("no model at b")
            assert supervisor.serving() == []

    asyncio.run(scenario())
