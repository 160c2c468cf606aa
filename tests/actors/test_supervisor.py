"""The supervisor with small real actors: failed starts, losses, restarts and initialisation."""

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
from tests.actors.echo_actor import SOON, Echo, echoes, kill, process_of, until, wait_for_end

pytestmark = pytest.mark.usefixtures("local_ray")


def test_if_one_actor_does_not_start_all_are_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "here").touch()
        async with echoes(tmp_path, count=2) as supervisor:
            with pytest.raises(UserError, match=r"^agent 0 generator [01] on [\d.]+: no model at here$"):
                await supervisor.start()
            assert supervisor.serving() == []
            assert supervisor.exhausted()

    asyncio.run(scenario())


def test_a_lost_actor_is_replaced_once_per_incarnation(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with echoes(tmp_path, restarts=2, kind="sandbox") as supervisor:
            await supervisor.start()
            (first,) = supervisor.serving()
            assert (str(first.id), first.incarnation) == ("sandbox 0", 1)
            kill(first)
            with pytest.raises(ActorDied, match=r"^sandbox 0 died \(process \d+ on [\d.]+\)$"):
                await first.call(Echo.say, "hello").within(SOON)
            supervisor.report_lost(first, "it died")
            supervisor.report_lost(first, "reported twice")
            assert supervisor.serving() == []
            await until(supervisor.serving, "the next incarnation")
            (second,) = supervisor.serving()
            assert (second.id, second.incarnation) == (first.id, 2)
            assert await second.call(Echo.say, "hello").within(SOON) == "hello"
            supervisor.report_lost(first, "an old incarnation")
            assert supervisor.serving() == [second]
            assert supervisor.lost_count == 1

    asyncio.run(scenario())


def test_failed_starts_are_repeated_up_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            loss = asyncio.ensure_future(supervisor.raise_loss())
            supervisor.report_lost(third, "for the test")
            allowed = r"resources.sandbox.max_restarts allows 4 restarts within an hour"
            for waiting in (supervisor.wait_ready(), loss):
                with pytest.raises(UserError, match=rf"^sandbox 0 is lost for good \({allowed}\): .*no model at b$"):
                    await waiting
            assert supervisor.exhausted()

    asyncio.run(scenario())


def test_two_equal_losses_before_any_success_are_final(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with echoes(tmp_path, restarts=9, remedy="set another model.name") as supervisor:
            await supervisor.start()
            for reason in ("out of memory", "no such kernel", "no such kernel"):
                (echo,) = await supervisor.wait_ready()
                supervisor.report_lost(echo, f"{echo.id} ({echo.location}): {reason}")
            final = r"no such kernel, twice in a row and before any result: set another model\.name$"
            for raises in (supervisor.wait_ready, supervisor.raise_loss):
                with pytest.raises(UserError, match=r"^agent 0 generator 0 \(process \d+ on [\d.]+\): " + final):
                    await raises()
            assert echo.incarnation == 3

    asyncio.run(scenario())


def test_a_loss_and_an_equal_failure_of_the_next_start_are_final(tmp_path: Path) -> None:
    async def initialize(handle: Handle[Echo]) -> None:
        if handle.incarnation > 1:
            raise UserError(f"{handle.id} ({handle.location}): no such kernel")

    async def scenario() -> None:
        async with echoes(tmp_path, restarts=9, remedy="set another model.name", initialize=initialize) as supervisor:
            await supervisor.start()
            (echo,) = supervisor.serving()
            supervisor.report_lost(echo, f"{echo.id} ({echo.location}): no such kernel")
            with pytest.raises(UserError, match=r"no such kernel, twice in a row and before any result: set another"):
                await supervisor.wait_ready()

    asyncio.run(scenario())


def test_equal_losses_after_a_success_are_restarted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with echoes(tmp_path, restarts=9, remedy="set another model.name") as supervisor:
            await supervisor.start()
            supervisor.confirm_success()
            for incarnation in (1, 2, 3):
                (echo,) = await supervisor.wait_ready()
                assert echo.incarnation == incarnation
                supervisor.report_lost(echo, "no such kernel")

    asyncio.run(scenario())


def test_restarts_outside_the_window_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RESTART_WINDOW_S", 0.0)

    async def scenario() -> None:
        async with echoes(tmp_path, restarts=1) as supervisor:
            await supervisor.start()
            for incarnation in (2, 3, 4):
                supervisor.report_lost(supervisor.serving()[0], "for the test")
                (echo,) = await supervisor.wait_ready()
                assert echo.incarnation == incarnation

    asyncio.run(scenario())


def test_an_actor_serves_only_after_its_initialisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RESTART_PAUSE_S", 0.1)

    async def scenario() -> None:
        attempts, weights_arrived = [], asyncio.Event()

        async def initialize(handle: Handle[Echo]) -> None:
            if handle.incarnation == 1:
                return
            attempts.append((handle.id.replica, handle.incarnation))
            if handle.incarnation == 2:
                raise UserError("no weights yet")
            await weights_arrived.wait()
            assert await handle.call(Echo.say, "ready").within(SOON) == "ready"

        async with echoes(tmp_path, count=2, restarts=3, initialize=initialize) as supervisor:
            await supervisor.start()
            first, second = supervisor.serving()
            supervisor.report_lost(first, "for the test")
            assert await supervisor.wait_ready() == [second]
            await until(lambda: (0, 3) in attempts, "the second attempt")
            assert supervisor.serving() == [second]
            weights_arrived.set()
            again, _ = await supervisor.wait_ready(all_members=True)
            assert (again.incarnation, attempts) == (3, [(0, 2), (0, 3)])

    asyncio.run(scenario())


def test_a_hanging_actor_is_suspect_then_lost_and_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with echoes(tmp_path, restarts=1, heartbeat_s=2.0) as supervisor:
            await supervisor.start()
            (first,) = supervisor.serving()
            await first.call(Echo.wait, 3.0).within(SOON)
            assert supervisor.lost_count == 0, "heartbeats are answered during a call"
            os.kill(process_of(first), signal.SIGSTOP)
            await until(lambda: supervisor.is_suspect(first), "the suspect state")
            os.kill(process_of(first), signal.SIGCONT)
            await until(lambda: not supervisor.is_suspect(first), "a heartbeat")
            assert supervisor.serving() == [first]
            os.kill(process_of(first), signal.SIGSTOP)
            await until(lambda: not supervisor.is_serving(first), "the loss")
            (second,) = await supervisor.wait_ready()
            assert second.incarnation == 2

    asyncio.run(scenario())


def test_actors_are_added_and_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with echoes(tmp_path) as supervisor:
            await supervisor.start()
            id = ActorId("generator", PolicyId((0,)), 1)
            supervisor.add(ActorSpec(id, Echo, (id, str(tmp_path)), {"num_cpus": 0}))
            assert [echo.id.replica for echo in supervisor.serving()] == [0]
            first, second = await supervisor.wait_ready(all_members=True)
            supervisor.remove(first.id)
            assert first.location is not None
            await asyncio.to_thread(wait_for_end, first.location.process)
            with pytest.raises(ActorDied):
                await first.call(Echo.say, "hello").within(SOON)
            supervisor.report_lost(first, "it was removed")
            assert await supervisor.wait_ready(all_members=True) == [second]
            supervisor.add(ActorSpec(first.id, Echo, (first.id, str(tmp_path)), {"num_cpus": 0}))
            second, again = await supervisor.wait_ready(all_members=True)
            assert (again.id, again.incarnation) == (first.id, 2)
            supervisor.report_lost(first, "it was removed")
            assert supervisor.serving() == [second, again], "reports about earlier incarnations are ignored"

    asyncio.run(scenario())


def test_an_actor_removed_during_its_restart_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "RESTART_PAUSE_S", 0.2)

    async def scenario() -> None:
        restarted: list[int] = []

        async def initialize(handle: Handle[Echo]) -> None:
            if handle.incarnation > 1:
                restarted.append(handle.incarnation)
                raise UserError("no weights")

        async with echoes(tmp_path, count=2, restarts=3, initialize=initialize) as supervisor:
            await supervisor.start()
            first, second = supervisor.serving()
            supervisor.report_lost(first, "for the test")
            await until(lambda: restarted == [2], "the second incarnation")
            supervisor.remove(first.id)
            assert await supervisor.wait_ready(all_members=True) == [second]
            await until(lambda: not supervisor._tasks, "the end of its restart")
            assert restarted == [2]

    asyncio.run(scenario())


def test_an_actor_removed_while_it_waits_for_the_start_lock_is_not_created(tmp_path: Path) -> None:
    async def scenario() -> None:
        lock = asyncio.Lock()
        async with echoes(tmp_path, count=2, start_lock=lambda: lock, restarts=3) as supervisor:
            await supervisor.start()
            first, second = supervisor.serving()
            async with lock:
                member = supervisor._members[first.id]
                supervisor.report_lost(first, "for the test")
                await until(lambda: member.state == "starting", "the restart to wait for the lock")
                supervisor.remove(first.id)
            await until(lambda: not supervisor._tasks, "the end of its restart")
            assert supervisor.serving() == [second]
            assert member.handle is None, "no other process was created"

    asyncio.run(scenario())


def test_a_stale_actor_serves_after_another_initialisation(tmp_path: Path) -> None:
    async def scenario() -> None:
        weights_arrived = asyncio.Event()
        initialized: list[int] = []

        async def initialize(handle: Handle[Echo]) -> None:
            if not initialized:
                initialized.append(0)
                return
            await weights_arrived.wait()
            initialized.append(handle.incarnation)
            if len(initialized) == 3:
                raise UserError("it rejects the weights")

        async with echoes(tmp_path, restarts=1, heartbeat_s=20, initialize=initialize) as supervisor:
            await supervisor.start()
            (first,) = supervisor.serving()
            supervisor.initialize_again(first)
            assert supervisor.serving() == []
            supervisor.initialize_again(first)
            supervisor.report_lost(first, "ignored, because it does not serve")
            weights_arrived.set()
            assert await supervisor.wait_ready() == [first]
            supervisor.initialize_again(first)
            (second,) = await supervisor.wait_ready()
            assert second.incarnation == 2, "a failed initialisation is a loss"
            assert initialized == [0, 1, 1, 2]
            supervisor.initialize_again(first)
            assert supervisor.serving() == [second], "an old incarnation"

    asyncio.run(scenario())


def test_starts_hold_the_start_lock_and_initialisations_do_not(tmp_path: Path) -> None:
    # An initialisation may wait for a task that waits for the lock.

    async def scenario() -> None:
        lock = asyncio.Lock()
        starts: list[int] = []

        @asynccontextmanager
        async def start_lock() -> AsyncIterator[None]:
            async with lock:
                starts.append(len(starts))
                yield

        async def initialize(handle: Handle[Echo]) -> None:
            async with lock:
                await handle.call(Echo.say, "ready").within(SOON)

        async with echoes(tmp_path, count=3, initialize=initialize, start_lock=start_lock) as supervisor:
            await supervisor.start()
            assert len(starts) == len(supervisor.serving()) == 3

    asyncio.run(scenario())
