"""What a learner is made from again when it was lost: the newest checkpoint, and the batches since then."""

from __future__ import annotations

from marl_ray.core.batch import Batch
from marl_ray.runs.folder import RunFolder


class AgentHistory:
    """One agent's `History` in a run folder, as it is at each call."""

    def __init__(self, folder: RunFolder, agent: int) -> None:
        self.folder = folder
        self.agent = agent

    def checkpoint(self) -> tuple[int, str] | None:
        """See `History.checkpoint`. Raises UserError for one that is damaged."""
        found = self.folder.checkpoints.latest()
        if found is None:
            return None
        path, state = found
        return state.step, str(self.folder.checkpoints.agent_folder(path, self.agent))

    def batch(self, step: int) -> Batch:
        """See `History.batch`."""
        return self.folder.log.batch(step, self.agent)
