"""Real learner processes that write their checkpoints while they train: they are killed, and their folder is lost."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from marl_ray.actors.handle import Deadline, Handle
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.shared_learner import SharedLearner, SharedLearnerHandle
from marl_ray.actors.supervisor import ActorSpec, RestartLimits, Supervisor
from marl_ray.core.batch import Batch
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.core.state import TrainerState
from marl_ray.learning.learner import STATE_FILE, Learner
from marl_ray.storage.checkpoints import Checkpoints
from tests.actors.echo_actor import SOON, kill
from tests.actors.helpers import DEADLINES, ClosedQueue, MemoryHistory, generators, learner_arguments
from tests.learning.builders import assert_same_state, numbered, some_groups

POLICY = PolicyId((0,))
START = Deadline(DEADLINES.start_s, "start_s", "to start")


class BackgroundLearner(LearnerActor):
    """A learner that writes its checkpoints while it trains, as on a GPU."""

    _copies_to_save = True


def group_of(restarts: int) -> LearnerGroup:
    id = ActorId("learner", POLICY)
    spec: ActorSpec[LearnerActor] = ActorSpec(id, BackgroundLearner, (id, learner_arguments()), {"num_cpus": 0})
    supervise = partial(Supervisor, [spec], RestartLimits(START, restarts, DEADLINES.heartbeat_s))
    return LearnerGroup(POLICY, supervise, 1, "store", DEADLINES)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def batches(count: int) -> Sequence[Batch]:
    return [numbered(step, some_groups(4, step), 2) for step in range(count)]


@pytest.mark.slow
def test_a_learner_that_is_killed_while_it_writes_resumes_and_writes_the_same(local_ray: None, tmp_path: Path) -> None:
    expected = Learner(*learner_arguments())
    expected_stats = []
    for batch in batches(4):
        if batch.step == 2:
            expected.save(str(tmp_path / "expected"))
        expected_stats.append(repr(expected.update(batch)))
    checkpoints = Checkpoints(tmp_path / "checkpoints")

    async def scenario() -> list[str]:
        learner, log = group_of(restarts=1), MemoryHistory()
        try:
            await learner.start()
            await learner.connect(generators(), log)  # generators that have not started
            log.batches = {batch.step: batch for batch in batches(4)}
            stats = [repr(await learner.learn(ClosedQueue(log.batches[0])))]
            await learner.save(str(checkpoints.begin(1, POLICY)))
            first = checkpoints.commit(TrainerState(1, 1, 1), keep=2)
            log.saved = (1, str(first / POLICY.key))
            stats.append(repr(await learner.learn(ClosedQueue(log.batches[1]))))

            second = checkpoints.begin(2, POLICY)
            os.mkfifo(second / STATE_FILE)  # the write waits here for a reader
            await learner.begin_save(str(second))
            write = asyncio.create_task(learner.finish_save())
            stats.append(repr(await learner.learn(ClosedQueue(log.batches[2]))))
            assert not write.done(), "the learner trains during the write"
            assert checkpoints.latest() == (first, TrainerState(1, 1, 1))
            (second / STATE_FILE).unlink()
            kill(learner.ranks.serving()[0])
            stats.append(repr(await learner.learn(ClosedQueue(log.batches[3]))))
            assert checkpoints.latest() == (first, TrainerState(1, 1, 1))
            await write
            assert [rank.incarnation for rank in learner.ranks.serving()] == [2]
            return stats
        finally:
            await learner.close()

    assert asyncio.run(scenario()) == expected_stats
    final = checkpoints.commit(TrainerState(2, 2, 2), keep=2)
    found, same = contents(final / POLICY.key), contents(tmp_path / "expected")
    assert found.keys() == same.keys()
    assert all(found[name] == data for name, data in same.items() if name != STATE_FILE)
    # The state of the random number generator, which training does not use, differs between processes.
    one, other = Learner(*learner_arguments()), Learner(*learner_arguments())
    one.load(str(final / POLICY.key), 2)
    other.load(str(tmp_path / "expected"), 2)
    assert_same_state(one, other)


@pytest.mark.slow
def test_a_lost_folder_is_named(local_ray: None, tmp_path: Path) -> None:
    folder = tmp_path / "agent_0"

    async def scenario() -> None:
        learner = group_of(restarts=0)
        try:
            await learner.start()
            await learner.begin_save(str(folder))
            shutil.rmtree(folder)
            for _ in range(2):
                with pytest.raises(
                    UserError,
                    match=rf"^agent 0 learner on [\d.]+: {folder} cannot be written \(No such file or directory\): "
                    "make its disk available, then --resume the run$",
                ):
                    await learner.finish_save()
        finally:
            await learner.close()

    asyncio.run(scenario())


class Shared:
    """A shared process that records the methods that are submitted to it."""

    def __init__(self) -> None:
        self.submitted: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return Remote(self, name)


class Remote:
    def __init__(self, process: Shared, name: str) -> None:
        self.process, self.name = process, name

    async def remote(self, *args: Any) -> None:
        self.process.submitted.append((self.name, *args))


def test_a_write_of_a_shared_learner_does_not_wait_for_calls() -> None:
    async def scenario() -> list[tuple[Any, ...]]:
        process = Shared()
        handle: Handle[LearnerActor] = SharedLearnerHandle(ActorId("learner", POLICY), process, 1)
        assert isinstance(handle, SharedLearnerHandle)
        async with handle.lock:  # another policy trains
            await handle.call(LearnerActor.finish_save).within(SOON)
        return process.submitted

    assert asyncio.run(scenario()) == [("finish_save", POLICY)]
    assert SharedLearner.concurrency_groups["checkpoint"] == 1
