"""Checkpoints: whole or absent.

Each is written to a hidden folder and renamed when it is complete, so that whatever interrupts a run, the
newest `step_*` folder is one to go on from. Learners write their part themselves: the run folder must be one
that their nodes see.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

from marl_ray.core.errors import UserError
from marl_ray.core.state import TrainerState

STATE_FILE = "trainer.json"


class Checkpoints:
    """The checkpoints of one run, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, step: int, agent: int) -> Path:
        """The empty folder of one agent's part, in a hidden one."""
        part = self.agent_folder(self._hidden(step), agent)
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        return part

    def commit(self, state: TrainerState, keep: int) -> Path:
        """All parts are there: make it visible, and delete all but the newest `keep`, at least 1."""
        path = self._hidden(state.step)
        (path / STATE_FILE).write_text(json.dumps(asdict(state)))
        final = path.with_name(path.name.removeprefix("."))
        shutil.rmtree(final, ignore_errors=True)
        os.replace(path, final)
        for old in self.all()[:-keep]:
            shutil.rmtree(old)
        return final

    def all(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted(self.folder.glob("step_[0-9]*"), key=lambda path: int(path.name.removeprefix("step_")))

    def latest(self) -> tuple[Path, TrainerState]:
        """The newest complete one. Raises UserError when there is none."""
        found = self.all()
        if not found:
            raise UserError(f"{self.folder} has no checkpoint to resume from")
        raw = json.loads((found[-1] / STATE_FILE).read_text())
        raw.pop("weight_versions", None)  # of older runs: all were the step
        return found[-1], TrainerState(**raw)

    def _hidden(self, step: int) -> Path:
        return self.folder / f".step_{step:06d}"

    @staticmethod
    def agent_folder(path: Path, agent: int) -> Path:
        """Where one agent's learner writes."""
        return path / f"agent_{agent}"
