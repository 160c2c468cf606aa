"""gather, task_group, wait_within and ReadWriteLock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from marl_ray.core.concurrency import DeadlineExceeded, ReadWriteLock, gather, task_group, wait_within
from marl_ray.core.errors import UserError


def test_gather_keeps_the_order() -> None:
    async def value(number: int) -> int:
        await asyncio.sleep(0)
        return number

    assert asyncio.run(gather(*(value(n) for n in range(4)))) == [0, 1, 2, 3]
    assert asyncio.run(gather()) == []


def test_the_first_failure_cancels_the_others() -> None:
    ended = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("endless")

    async def fails() -> None:
        raise KeyError("first")

    with pytest.raises(KeyError, match="first"):
        asyncio.run(gather(endless(), fails(), endless()))
    assert ended == ["endless", "endless"]


def test_cancelling_a_gather_does_not_interrupt_cleanup() -> None:
    steps = []

    async def cleans_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            steps.append("cleaned up")

    async def scenario() -> None:
        gathering = asyncio.ensure_future(gather(cleans_up(), asyncio.Event().wait()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gathering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gathering

    asyncio.run(scenario())
    assert steps == ["cleaned up"]


def test_a_task_group_waits_for_tasks_created_later() -> None:
    ended = []

    async def value(number: int) -> None:
        await asyncio.sleep(0)
        ended.append(number)

    async def scenario() -> None:
        async with task_group() as tasks:
            for number in range(3):
                tasks.create_task(value(number))
                await asyncio.sleep(0)
        ended.append(3)

    asyncio.run(scenario())
    assert ended == [0, 1, 2, 3]


@pytest.mark.parametrize("begins_it", [True, False])
def test_the_first_failure_in_a_task_group_cancels_all_and_is_raised_itself(begins_it: bool) -> None:
    # The failure is in a task or in the body of the task group.
    ended = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("endless")

    async def fails() -> None:
        raise UserError("first") from KeyError("cause")

    async def scenario() -> None:
        async with task_group() as tasks:
            tasks.create_task(endless())
            await asyncio.sleep(0)
            if begins_it:
                await fails()
            tasks.create_task(fails())
            await asyncio.Event().wait()

    with pytest.raises(UserError, match="first") as found:
        asyncio.run(scenario())
    assert isinstance(found.value.__cause__, KeyError)
    assert ended == ["endless"]


def test_an_expired_wait_names_the_peer_and_the_setting() -> None:
    async def wait(setting: str) -> None:
        await wait_within(0.01, "the generators", setting, asyncio.Event().wait())

    with pytest.raises(UserError) as found:
        asyncio.run(wait("rollout_s"))
    assert str(found.value) == "timed out after 0.01 s waiting for the generators (resources.deadlines.rollout_s)"
    with pytest.raises(DeadlineExceeded) as found:
        asyncio.run(wait(""))
    assert str(found.value) == "timed out after 0.01 s waiting for the generators"


def test_a_timeout_of_the_awaitable_itself_is_raised_unchanged() -> None:
    async def fails() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        asyncio.run(wait_within(60, "the learner", "rollout_s", fails()))


def test_a_lock_is_held_by_one_task_or_shared_by_several() -> None:
    async def scenario() -> list[str]:
        lock = ReadWriteLock()
        log: list[str] = []

        async def hold(name: str, how: Callable[[], AbstractAsyncContextManager[None]]) -> None:
            async with how():
                log.append(f"{name} begins")
                await asyncio.sleep(0)
                log.append(f"{name} ends")

        await asyncio.gather(
            hold("reader 0", lock.shared),
            hold("reader 1", lock.shared),
            hold("writer 0", lock.exclusive),
            hold("writer 1", lock.exclusive),
            hold("reader 2", lock.shared),
        )
        return log

    log = asyncio.run(scenario())
    assert log[:2] == ["reader 0 begins", "reader 1 begins"]
    for writer in ("writer 0", "writer 1"):
        assert log.index(f"{writer} ends") == log.index(f"{writer} begins") + 1, "alone"
    assert len(log) == 10


def test_a_cancelled_wait_leaves_the_lock_to_others() -> None:
    async def scenario() -> bool:
        lock = ReadWriteLock()
        async with lock.shared():
            waiting = asyncio.ensure_future(lock.exclusive().__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            async with asyncio.timeout(5), lock.shared():
                return True

    assert asyncio.run(scenario())
