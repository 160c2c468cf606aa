"""The supervisor, with small real actors: what becomes of those that do not start, and of those that are lost."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from marl_ray.actors import supervisor as supervisor_module
from marl_ray.actors.handle import ActorDied
from marl_ray.core.errors import UserError
from tests.actors.echo import SOON, Echo, echoes, process_of, until

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
            assert supervisor.losses == 1

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
