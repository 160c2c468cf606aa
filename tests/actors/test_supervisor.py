"""The supervisor, with small real actors: what becomes of those that do not start, and of those that are lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from marl_ray.actors import supervisor as supervisor_module
from marl_ray.actors.handle import ActorDied, Handle
from marl_ray.actors.supervisor import ActorSpec
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, PolicyId
from tests.actors.echo_actor import SOON, Echo, echoes, gone, process_of, until

pytestmark = pytest.mark.usefixtures("local_ray")


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
            assert (str(first.id), first.incarnation) == ("sandbox 0", 1)
            os.kill(process_of(first), signal.SIGKILL)
            with pytest.raises(ActorDied, match=r"^sandbox 0 died \(process \d+ on [\d.]+\)$"):
                await first.call(Echo.say, "hello").within(SOON)
            supervisor.report_lost(first, "it died")
            supervisor.report_lost(first, "said twice")
            assert supervisor.serving() == []
            await until(supervisor.serving, "the next incarnation")
            (second,) = supervisor.serving()
            assert (second.id, second.incarnation) == (first.id, 2)
            assert await second.call(Echo.say, "hello").within(SOON) == "hello"
            supervisor.report_lost(first, "an old incarnation")
            assert supervisor.serving() == [second]
            assert supervisor.lost_count == 1

    asyncio.run(scenario())


def test_starts_in_vain_are_tried_again_and_then_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RESTART_PAUSE_S", 0.1)

    async def scenario() -> None:
        async with echoes(tmp_path, restarts=4, kind="sandbox") as supervisor:
            await supervisor.start()
            (tmp_path / "nowhere").touch()
            supervisor.report_lost(supervisor.serving()[0], "for the test")
            (third,) = await supervisor.wait_ready()
            assert third.incarnation == 3, "the second did not start"
            for name in ("a", "b"):
                (tmp_path / name).touch()
            supervisor.report_lost(third, "for the test")
            allowed = r"resources.sandbox.max_restarts allows 4 restarts within an hour"
            with pytest.raises(UserError, match=rf"^sandbox 0 is lost for good \({allowed}\): .*no model at b$"):
                await supervisor.wait_ready()
            assert supervisor.exhausted()

    asyncio.run(scenario())


def test_restarts_count_for_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RESTART_WINDOW_S", 0.0)

    async def scenario() -> None:
        async with echoes(tmp_path, restarts=1) as supervisor:
            await supervisor.start()
            for incarnation in (2, 3, 4):
                supervisor.report_lost(supervisor.serving()[0], "for the test")
                (echo,) = await supervisor.wait_ready()
                assert echo.incarnation == incarnation

    asyncio.run(scenario())


def test_an_actor_serves_only_after_it_was_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RESTART_PAUSE_S", 0.1)

    async def scenario() -> None:
        async with echoes(tmp_path, count=2, restarts=3) as supervisor:
            await supervisor.start()
            tried, may_go_on = [], asyncio.Event()

            async def fit(handle: Handle[Echo]) -> None:
                tried.append((handle.id.replica, handle.incarnation))
                if handle.incarnation == 2:
                    raise UserError("no weights yet")
                await may_go_on.wait()
                assert await handle.call(Echo.say, "fits").within(SOON) == "fits"

            supervisor.fit = fit
            first, second = supervisor.serving()
            supervisor.report_lost(first, "for the test")
            assert await supervisor.wait_ready() == [second]
            await until(lambda: (0, 3) in tried, "its second try")
            assert supervisor.serving() == [second]
            may_go_on.set()
            again, _ = await supervisor.wait_ready(all_members=True)
            assert (again.incarnation, tried) == (3, [(0, 2), (0, 3)])

    asyncio.run(scenario())


def test_one_that_hangs_is_suspected_then_lost_and_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with echoes(tmp_path, restarts=1, heartbeat_s=2.0) as supervisor:
            await supervisor.start()
            (first,) = supervisor.serving()
            await first.call(Echo.wait, 3.0).within(SOON)
            assert supervisor.lost_count == 0, "it worked, and answered meanwhile"
            os.kill(process_of(first), signal.SIGSTOP)
            await until(lambda: supervisor.is_suspect(first), "a suspicion")
            os.kill(process_of(first), signal.SIGCONT)
            await until(lambda: not supervisor.is_suspect(first), "a sign of life")
            assert supervisor.serving() == [first]
            os.kill(process_of(first), signal.SIGSTOP)
            await until(lambda: not supervisor.is_serving(first), "the loss")
            (second,) = await supervisor.wait_ready()
            assert second.incarnation == 2

    asyncio.run(scenario())


def test_actors_are_added_and_taken_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with echoes(tmp_path) as supervisor:
            await supervisor.start()
            name = ActorId("generator", PolicyId((0,)), 1)
            supervisor.add(ActorSpec(name, Echo, (name, str(tmp_path)), {"num_cpus": 0}))
            assert [echo.id.replica for echo in supervisor.serving()] == [0]
            first, second = await supervisor.wait_ready(all_members=True)
            supervisor.remove(first.id)
            assert first.location is not None
            await asyncio.to_thread(gone, first.location.process)
            with pytest.raises(ActorDied):
                await first.call(Echo.say, "hello").within(SOON)
            supervisor.report_lost(first, "it was taken away")
            assert await supervisor.wait_ready(all_members=True) == [second]
            supervisor.add(ActorSpec(first.id, Echo, (first.id, str(tmp_path)), {"num_cpus": 0}))
            second, again = await supervisor.wait_ready(all_members=True)
            assert (again.id, again.incarnation) == (first.id, 2)
            supervisor.report_lost(first, "it was taken away")
            assert supervisor.serving() == [second, again], "no incarnation of before"

    asyncio.run(scenario())


def test_what_is_taken_away_while_it_is_being_replaced_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "RESTART_PAUSE_S", 0.2)

    async def scenario() -> None:
        async with echoes(tmp_path, count=2, restarts=3) as supervisor:
            await supervisor.start()
            first, second = supervisor.serving()
            lives: list[int] = []

            async def fit(handle: Handle[Echo]) -> None:
                lives.append(handle.incarnation)
                raise UserError("not this one")

            supervisor.fit = fit
            supervisor.report_lost(first, "for the test")
            await until(lambda: lives == [2], "its second incarnation")
            supervisor.remove(first.id)
            assert await supervisor.wait_ready(all_members=True) == [second]
            await until(lambda: not supervisor._tasks, "the end of its replacement")
            assert lives == [2]

    asyncio.run(scenario())


def test_who_has_lost_what_it_was_fitted_with_serves_after_another_fit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with echoes(tmp_path, restarts=1, heartbeat_s=20) as supervisor:
            await supervisor.start()
            (first,) = supervisor.serving()
            may_go_on, fitted = asyncio.Event(), []

            async def fit(handle: Handle[Echo]) -> None:
                await may_go_on.wait()
                fitted.append(handle.incarnation)
                if len(fitted) == 2:
                    raise UserError("it does not take them")

            supervisor.fit = fit
            supervisor.mark_stale(first)
            assert supervisor.serving() == []
            supervisor.mark_stale(first)
            supervisor.report_lost(first, "it serves nobody, so nobody can know")
            may_go_on.set()
            assert await supervisor.wait_ready() == [first]
            supervisor.mark_stale(first)
            (second,) = await supervisor.wait_ready()
            assert second.incarnation == 2, "one that cannot be fitted is lost"
            assert fitted == [1, 1, 2]
            supervisor.mark_stale(first)
            assert supervisor.serving() == [second], "an old incarnation"

    asyncio.run(scenario())


def test_starts_are_made_in_their_turn_and_fits_are_not(tmp_path: Path) -> None:
    """A fit may wait for somebody who waits for the turn."""

    async def scenario() -> None:
        async with echoes(tmp_path, count=3) as supervisor:
            turn = asyncio.Lock()
            inside = []

            @asynccontextmanager
            async def alone() -> AsyncIterator[None]:
                async with turn:
                    inside.append(len(supervisor.serving()))
                    yield

            async def fit(handle: Handle[Echo]) -> None:
                async with turn:
                    await handle.call(Echo.say, "fitted").within(SOON)

            supervisor.turn, supervisor.fit = alone, fit
            await supervisor.start()
            assert len(inside) == len(supervisor.serving()) == 3

    asyncio.run(scenario())
