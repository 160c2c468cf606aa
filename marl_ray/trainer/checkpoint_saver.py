"""Saving checkpoints while training continues.

    learner of each policy --save: copies its state--> writes its part --+
    StepRecorder ----------recorded: state of the step-------------------+--> commit: the checkpoint is visible

A checkpoint is visible only when its step is recorded and all of its parts are on disk. Until then the previous one is
the newest.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from marl_ray.actors.handle import ActorFailed
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.core.concurrency import gather, now
from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState
from marl_ray.storage.checkpoints import checkpoint_step
from marl_ray.trainer.context import LoopContext

logger = logging.getLogger(__name__)


class CheckpointSaver:
    """The checkpoints of one run, from the learners' copies to complete folders."""

    def __init__(self, context: LoopContext) -> None:
        self.context = context
        first_step = context.resume_state.state.step + 1
        self._due = [step for step in range(first_step, context.gate.total + 1) if self.is_due(step)]
        """Steps of the checkpoints that are not committed yet, in order."""
        self._states: dict[int, TrainerState] = {}
        """By step, of recorded steps with a checkpoint."""
        self._written: set[tuple[int, PolicyId]] = set()
        """Step and policy of the parts that are on disk."""
        self._writes: dict[PolicyId, _Write] = {}
        """Writes in progress; a learner has at most one."""
        self._committing: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    def is_due(self, step: int) -> bool:
        """Return whether there is a checkpoint after `step` steps."""
        return step % self.context.config.training.save_steps == 0 or step == self.context.gate.total

    def recorded(self, state: TrainerState) -> None:
        """Note the progress after a step. The caller notifies the condition."""
        if self.is_due(state.step):
            self._states[state.step] = state

    async def save(self, learner: LearnerGroup, step: int) -> None:
        """Copy a learner's state after `step` steps, and start to write it. Wait for the learner's previous write."""
        policy = learner.policy
        # A second copy would take the learner's memory once more.
        await self.context.condition.wait_for(lambda: policy not in self._writes)
        folder = self.context.folder.checkpoints.begin(step, policy)
        await learner.begin_save(str(folder))
        self._writes[policy] = _Write(step, learner, asyncio.create_task(self._write(learner, step)))

    async def _write(self, learner: LearnerGroup, step: int) -> None:
        """Wait until a learner's part is on disk. A failure ends the run (see `commit_all`)."""
        begun = now()
        try:
            await learner.finish_save()
        except Exception as error:
            self._failure = self._failure or error
        else:
            self._finished(learner, step)
            self.context.timeline.finish_write(step - 1, learner.policy, begun)
        self.context.condition.notify_all()

    def _finished(self, learner: LearnerGroup, step: int) -> None:
        self._written.add((step, learner.policy))
        del self._writes[learner.policy]

    async def commit_all(self) -> None:
        """Commit each checkpoint as soon as it is complete. Raises the error of a failed write."""
        while self._due:
            await self.context.condition.wait_for(lambda: self._failure is not None or self._is_complete())
            if self._failure is not None:
                raise self._failure
            await self._commit()

    def _is_complete(self) -> bool:
        """Return whether the next checkpoint can be committed."""
        step = self._due[0]
        return step in self._states and self._parts(step) <= self._written

    def _parts(self, step: int) -> set[tuple[int, PolicyId]]:
        """Return the parts of which a checkpoint consists."""
        return {(step, policy) for policy in self.context.config.policies}

    async def _commit(self) -> None:
        """Commit the next checkpoint. A call after a cancelled one waits for the same commit."""
        # A commit is a thread that renames folders, so it goes on if this wait is cancelled by a signal.
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_next())
        committing = self._committing
        try:
            await asyncio.shield(committing)
        finally:
            if committing.done():
                self._committing = None

    async def _commit_next(self) -> None:
        """Make the next checkpoint visible, and delete batches from the log that every kept checkpoint covers.

        Batches since the oldest kept checkpoint stay, because a learner may be recovering from it.
        """
        folder = self.context.folder
        output = self.context.config.output
        step = self._due[0]
        keep = output.keep_checkpoints
        if step < self.context.gate.total:
            # A learner that was lost after it had written its part may be loading the previous checkpoint just now.
            keep = max(keep, 2)
        await asyncio.to_thread(folder.commit, self._states[step], keep)
        # The checkpoint stays due until it is visible: `finish` commits it if a signal arrives before.
        self._due.pop(0)
        self._written -= self._parts(step)
        if not output.keep_batches:
            oldest = folder.checkpoints.all()[0]
            folder.log.drop_before(checkpoint_step(oldest))

    async def finish(self) -> None:
        """Complete the checkpoints whose parts are all being written, after a signal or an error has stopped the run. A
        lost learner is not restarted for it."""
        if self._failure is not None:
            logger.warning(f"the checkpoint of step {self._due[0]} is not complete: {self._failure}")
        while self._due and self._failure is None:
            step = self._due[0]
            writes = [write for write in self._writes.values() if write.step == step]
            learners = [write.learner for write in writes]
            being_written = {(step, learner.policy) for learner in learners}
            has_all_parts = self._parts(step) <= self._written | being_written
            if step not in self._states or not has_all_parts:
                return
            if learners:
                logger.info(f"stopping when the checkpoint of step {step} is written; the same signal stops at once")
            self.close()  # these waits would restart a learner
            try:
                await gather(*(learner.finish_save(may_restart=False) for learner in learners))
                for learner in learners:
                    self._finished(learner, step)
                await self._commit()
            except (UserError, ActorFailed, OSError) as error:
                logger.warning(f"the checkpoint of step {step} is not complete: {error}")
                return

    def close(self) -> None:
        """End the waits for writes, which go on in the learners."""
        for write in self._writes.values():
            write.task.cancel()


@dataclass(frozen=True, slots=True)
class _Write:
    """A learner's part of the checkpoint after `step` steps, while the learner writes its copy."""

    step: int
    learner: LearnerGroup
    task: asyncio.Task[None]
