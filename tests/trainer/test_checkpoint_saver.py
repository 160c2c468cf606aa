"""Checkpoints become visible when they are complete, in order, whenever writes end, fail or are interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marl_ray.actors.handle import ActorDied
from marl_ray.core.concurrency import Condition
from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState
from marl_ray.storage.resume import ResumeState
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.timing import Timeline
from marl_ray.trainer.checkpoint_saver import CheckpointSaver

POLICIES = (PolicyId((0,)), PolicyId((1,)))


class Learner:
    """A learner whose writes end when the test says so."""

    def __init__(self, policy: PolicyId) -> None:
        self.policy = policy
        self.folders: list[Path] = []
        self.may_end = asyncio.Event()
        self.failure: Exception | None = None
        self.restarts: list[bool] = []

    async def begin_save(self, folder: str) -> None:
        self.folders.append(Path(folder))

    async def finish_save(self, may_restart: bool = True) -> None:
        self.restarts.append(may_restart)
        await self.may_end.wait()
        if self.failure is not None:
            raise self.failure
        (self.folders[-1] / "weights").write_text("x", encoding="utf-8")


class Run:
    """Two learners, and the saver of a run of four steps with a checkpoint after every second one."""

    def __init__(self, path: Path, keep: int = 2) -> None:
        self.folder, self.condition = RunFolder(path), Condition()
        self.folder.log = SimpleNamespace(drop_before=lambda step: None)  # type: ignore[assignment]
        config = SimpleNamespace(
            policies=POLICIES,
            training=SimpleNamespace(save_steps=2),
            output=SimpleNamespace(keep_checkpoints=keep, keep_batches=False),
        )
        context: Any = SimpleNamespace(
            config=config,
            folder=self.folder,
            resume_state=ResumeState.at_start(),
            gate=SimpleNamespace(total=4),
            condition=self.condition,
            timeline=Timeline(POLICIES),
        )
        self.saver = CheckpointSaver(context)
        self.learners: list[Any] = [Learner(policy) for policy in POLICIES]
        self.commits = asyncio.create_task(self.saver.commit_all())

    def record(self, step: int) -> None:
        self.saver.recorded(TrainerState(step, step, step))
        self.condition.notify_all()

    async def save(self, step: int) -> None:
        for learner in self.learners:
            await self.saver.save(learner, step)

    def visible(self) -> list[str]:
        return [path.name for path in self.folder.checkpoints.all()]


async def settle() -> None:
    """Let all other tasks, and threads that write small files, come to rest."""
    for _ in range(20):
        await asyncio.sleep(0.002)


def play(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_a_checkpoint_is_visible_when_its_step_is_recorded_and_all_parts_are_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = Run(tmp_path)
        await run.save(2)
        run.learners[0].may_end.set()
        run.record(2)
        await settle()
        assert run.visible() == [], "a part is missing"
        run.learners[1].may_end.set()
        await settle()
        assert run.visible() == ["step_000002"]
        await run.save(4)
        await settle()
        assert run.visible() == ["step_000002"], "the step is not recorded"
        run.record(4)
        await run.commits
        assert run.visible() == ["step_000002", "step_000004"]

    play(scenario())


def test_the_previous_checkpoint_stays_for_a_learner_that_may_be_loading_it_until_the_run_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = Run(tmp_path, keep=1)
        previous = run.folder.checkpoints.begin(0, POLICIES[0])
        run.folder.checkpoints.commit(TrainerState(0, 0, 0), keep=1)
        assert not previous.exists()
        for learner in run.learners:
            learner.may_end.set()
        await run.save(2)
        run.record(2)
        await settle()
        assert run.visible() == ["step_000000", "step_000002"]
        await run.save(4)
        run.record(4)
        await run.commits
        assert run.visible() == ["step_000004"]

    play(scenario())


def test_a_learner_has_one_write_in_progress(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = Run(tmp_path)
        run.record(2)
        await run.save(2)
        second = asyncio.create_task(run.save(4))
        await settle()
        assert [len(learner.folders) for learner in run.learners] == [1, 1]
        for learner in run.learners:
            learner.may_end.set()
        await second
        run.record(4)
        await run.commits
        assert [len(learner.folders) for learner in run.learners] == [2, 2]

    play(scenario())


def test_a_failed_write_ends_the_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = Run(tmp_path)
        run.record(2)
        await run.save(2)
        run.learners[1].failure = UserError("/runs/x cannot be written (disk is gone)")
        for learner in run.learners:
            learner.may_end.set()
        with pytest.raises(UserError, match="cannot be written"):
            await run.commits
        assert run.visible() == []

    play(scenario())


def test_a_stopped_run_completes_the_checkpoint_that_is_being_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        run = Run(tmp_path)
        run.record(2)
        await run.save(2)
        await settle()
        run.commits.cancel()
        finish = asyncio.create_task(run.saver.finish())
        await settle()
        assert run.visible() == []
        for learner in run.learners:
            learner.may_end.set()
        await finish
        assert run.visible() == ["step_000002"]
        assert [learner.restarts for learner in run.learners] == [[True, False]] * 2

    play(scenario())


def test_a_stopped_run_does_not_wait_for_a_lost_learner_or_a_part_that_was_not_begun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        lost = Run(tmp_path / "lost")
        lost.record(2)
        await lost.save(2)
        await settle()
        lost.commits.cancel()
        lost.learners[0].failure = ActorDied("agent 0 learner died")
        lost.learners[0].may_end.set()
        await lost.saver.finish()
        half = Run(tmp_path / "half")
        half.record(2)
        await half.saver.save(half.learners[0], 2)
        half.commits.cancel()
        await half.saver.finish()
        half.saver.close()
        assert (lost.visible(), half.visible()) == ([], [])

    play(scenario())
    assert "the checkpoint of step 2 is not complete: agent 0 learner died" in caplog.text


def test_a_commit_that_a_stop_interrupts_happens_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        run = Run(tmp_path)
        begun, commit = asyncio.Event(), run.folder.commit
        calls = []
        loop = asyncio.get_running_loop()

        def note(*args: Any) -> None:
            calls.append(args)
            loop.call_soon_threadsafe(begun.set)
            commit(*args)

        monkeypatch.setattr(run.folder, "commit", note)
        run.record(2)
        await run.save(2)
        for learner in run.learners:
            learner.may_end.set()
        await begun.wait()
        run.commits.cancel()
        await run.saver.finish()
        assert run.visible() == ["step_000002"]
        assert len(calls) == 1

    play(scenario())
