"""What a learner is made from again when it was lost: the newest checkpoint, and the batches since then."""

from __future__ import annotations

from marl_ray.core.batch import Batch
from marl_ray.core.ids import PolicyId
from marl_ray.credit.groups import merge_batches
from marl_ray.storage.run_folder import RunFolder


class StoredHistory:
    """One policy's `TrainingHistory` in a run folder, as it is at each call."""

    def __init__(self, folder: RunFolder, policy: PolicyId) -> None:
        self.folder = folder
        self.policy = policy

    def checkpoint(self) -> tuple[int, str] | None:
        """See `TrainingHistory.checkpoint`. Raises UserError for one that is damaged."""
        found = self.folder.checkpoints.latest()
        if found is None:
            return None
        path, state = found
        return state.step, str(self.folder.checkpoints.policy_folder(path, self.policy))

    def batch(self, step: int) -> Batch:
        """See `TrainingHistory.batch`."""
        return merge_batches([self.folder.log.batch(step, agent) for agent in self.policy.agents])
