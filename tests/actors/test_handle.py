"""Handles, with small real actors: what goes wrong there names who, where and why."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError

from marl_ray.actors.handle import ActorDied, ActorFailed, Call, Deadline, Handle
from marl_ray.core.concurrency import DeadlineExceeded
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, PolicyId
from tests.actors.echo_actor import SOON, Echo, echoes, process_of

pytestmark = pytest.mark.usefixtures("local_ray")


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
            with pytest.raises(
                DeadlineExceeded, match=r"^waited 0.1 s for agent 0 generator 0 to nap, in vain \(.*sync_s"
            ):
                await echo.call(Echo.wait, 1.0).within(Deadline(0.1, "sync_s", "to nap"))
            os.kill(process_of(echo), signal.SIGKILL)
            with pytest.raises(ActorDied, match=rf"^agent 0 generator 0 died \({where}\)$"):
                await echo.call(Echo.say, "hello").within(SOON)

    asyncio.run(scenario())


def test_what_ray_says_of_its_own_accord_is_a_loss() -> None:
    """Ray's errors, made here: no test is to fill a machine's memory."""
    call: Call[None] = Call(Handle(ActorId("learner", PolicyId((0,))), None, 1), "update", None)
    for error, says in (
        (
            OutOfMemoryError("Memory was 31 GB / 32 GB.\nSet max_retries."),
            "agent 0 learner was ended by Ray, as its node",
        ),
        (ObjectLostError("00", None, ""), "agent 0 learner's answer is lost, with its node"),
        (NodeDiedError("The node died."), "agent 0 learner's answer is lost, with its node"),
    ):
        found = call.translated(error)
        assert type(found) is ActorDied
        assert str(found).startswith(says)


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
            os.kill(process_of(busy), signal.SIGSTOP)
            os.kill(process_of(dead), signal.SIGKILL)
            late, gone, own = await asking.call(Echo.ask, [busy, dead, asking], 0.5).within(SOON)
            assert late == "waited 0.5 s for agent 0 generator 1 to answer, in vain (resources.deadlines.sync_s)"
            assert gone.startswith("agent 0 generator 2 died (process")
            assert own == "asked", "an answer that is there counts, however late the others are"

    asyncio.run(scenario())
