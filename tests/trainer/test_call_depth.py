"""The path from a policy's learn task to the remote call on a rank is short enough to read in one go."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import simulate
from benchmarks.simulated_actors import Generators, VirtualLoop
from benchmarks.simulated_durations import Pace
from marl_ray.actors.handle import Handle
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.learner_group import LearnerGroup, RankSupervisor
from marl_ray.actors.shared_learner import SharedLearnerHandle
from marl_ray.config import Deadlines
from marl_ray.core.batch import UpdateStats
from marl_ray.core.ids import ActorId, PolicyId

MAX_FRAMES = 8
PACE = Pace(token_s=0.02, slots=16, mean_tokens=10, learn_s=0.05, optimizer_s=0.1, publish_s=0.1)

Frames = list[tuple[str, list[str]]]
"""Remote methods, each with the functions of the package that were on the stack, outermost first."""


class Remote:
    """An actor method that records the stack of its caller and answers at once."""

    def __init__(self, name: str, calls: Frames) -> None:
        self.name, self.calls = name, calls

    def remote(self, *arguments: Any) -> Awaitable[UpdateStats]:
        stack = [frame.name for frame in traceback.extract_stack() if "/marl_ray/" in frame.filename]
        self.calls.append((arguments[1] if self.name == "call_learner" else self.name, stack))
        answer: asyncio.Future[UpdateStats] = asyncio.get_running_loop().create_future()
        answer.set_result(UpdateStats(0.0, 0.0, 0.0, None, None, 1, 0))
        return answer


class OneRank:
    """The rank of a learner that is never lost."""

    def __init__(self, rank: Handle[LearnerActor]) -> None:
        self.rank = rank

    async def wait_ready(self, all_members: bool) -> Sequence[Handle[LearnerActor]]:
        return [self.rank]

    def confirm_success(self) -> None:
        pass


def train(monkeypatch: pytest.MonkeyPatch, folder: Path, handle: type[Handle[LearnerActor]]) -> Frames:
    """Run two steps of the training loop with real learner groups of one recording rank."""
    calls: Frames = []

    class RecordedGroup(LearnerGroup):
        def __init__(self, policy: PolicyId, pace: Pace, generators: Generators, streams: bool) -> None:
            methods = {name: Remote(name, calls) for name in ("accumulate", "finish", "call_learner")}
            rank = handle(ActorId("learner", policy), SimpleNamespace(**methods), 1)
            super().__init__(policy, lambda initialize: cast(RankSupervisor, OneRank(rank)), 1, "store", Deadlines())
            self.generators = generators

        async def update_weights(self, changed: bool) -> None:
            self.generators.version = self.version

        async def begin_save(self, folder: str) -> None:
            pass

        async def finish_save(self, may_restart: bool = True) -> None:
            pass

    monkeypatch.setattr(simulate, "Learner", RecordedGroup)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(simulate.run_trainer(simulate.Case((PACE, PACE), (1, 1), tasks=2, steps=2, group=2), folder))
    return calls


def test_a_remote_call_is_at_most_eight_frames_below_the_learn_task(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = train(monkeypatch, tmp_path, Handle)
    assert {method for method, _ in calls} == {"accumulate", "finish"}
    for method, stack in calls:
        assert stack[0] == "learn", "the outermost function is the task"
        assert len(stack) <= MAX_FRAMES, f"{method}: {' > '.join(stack)}"


def test_a_call_to_a_shared_learner_is_not_deeper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The call runs in a task of its own, so the frames above that task count too: `learn` to the learner group.
    above = max(len(stack) - 2 for _, stack in train(monkeypatch, tmp_path / "own", Handle))
    calls = train(monkeypatch, tmp_path / "shared", SharedLearnerHandle)
    assert {method for method, _ in calls} == {"accumulate", "finish"}
    for method, stack in calls:
        assert above + len(stack) <= MAX_FRAMES, f"{method}: {' > '.join(stack)}"
