"""Handles of small real actors: errors name the actor, its location and the cause."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError

from marl_ray.actors.handle import ActorDied, ActorFailed, Call, Deadline, Handle
from marl_ray.core.concurrency import DeadlineExceeded
from marl_ray.core.errors import RejectedMessages, UserError
from marl_ray.core.ids import ActorId, PolicyId
from tests.actors.echo_actor import SOON, Echo, echoes, kill, process_of

pytestmark = pytest.mark.usefixtures("local_ray")


def test_errors_in_an_actor_name_the_actor(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with echoes(tmp_path) as supervisor:
            assert await supervisor.start() == [["agent 0 generator 0 is up"]]
            (echo,) = supervisor.serving()
            location = rf"process {process_of(echo)} on [\d.]+"
            assert await echo.call(Echo.say, "hello").within(SOON) == "hello"
            for kind in (UserError, RejectedMessages):
                with pytest.raises(kind, match=r"^agent 0 generator 0 on [\d.]+: give another model$"):
                    await echo.call(Echo.refuse, kind).within(SOON)
            with pytest.raises(ActorFailed, match=rf"^agent 0 generator 0 \({location}\) failed in fail: KeyError: "):
                await echo.call(Echo.fail).within(SOON)
            with pytest.raises(
                DeadlineExceeded, match=r"^timed out after 0.1 s waiting for agent 0 generator 0 to nap \(.*sync_s"
            ):
                await echo.call(Echo.wait, 1.0).within(Deadline(0.1, "sync_s", "to nap"))
            kill(echo)
            with pytest.raises(ActorDied, match=rf"^agent 0 generator 0 died \({location}\)$"):
                await echo.call(Echo.say, "hello").within(SOON)

    asyncio.run(scenario())


def test_errors_that_ray_raises_itself_are_losses() -> None:
    # The errors are constructed, because a test should not fill the memory of the machine.
    call: Call[None] = Call(Handle(ActorId("learner", PolicyId((0,))), None, 1), "update", None)
    for error, message in (
        (
            OutOfMemoryError("Memory was 31 GB / 32 GB.\nSet max_retries."),
            "agent 0 learner was ended by Ray, as its node",
        ),
        (ObjectLostError("00", None, ""), "agent 0 learner's answer is lost, with its node"),
        (NodeDiedError("The node died."), "agent 0 learner's answer is lost, with its node"),
    ):
        translated = call.translate(error)
        assert type(translated) is ActorDied
        assert str(translated).startswith(message)


def test_a_bug_keeps_the_remote_traceback(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with echoes(tmp_path) as supervisor:
            await supervisor.start()
            await supervisor.serving()[0].call(Echo.fail).within(SOON)

    with pytest.raises(ActorFailed) as raised:
        asyncio.run(scenario())
    assert 'raise KeyError("a bug")' in str(raised.value.__cause__)


def test_an_actor_that_waits_for_other_actors_names_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with echoes(tmp_path, count=3) as supervisor:
            await supervisor.start()
            asking, busy, dead = supervisor.serving()
            assert await asking.call(Echo.ask, [busy, dead], 60.0).within(SOON) == ["asked", "asked"]
            os.kill(process_of(busy), signal.SIGSTOP)
            kill(dead)
            late, died, own = await asking.call(Echo.ask, [busy, dead, asking], 0.5).within(SOON)
            assert (
                late == "timed out after 0.5 s waiting for agent 0 generator 1 to answer (resources.deadlines.sync_s)"
            )
            assert died.startswith("agent 0 generator 2 died (process")
            assert own == "asked", "an answer that has arrived counts, even if others are late"

    asyncio.run(scenario())
