"""Checkpoints: whole or absent.

Each is written to a hidden folder and renamed when it is complete and on disk, so that whatever interrupts a run,
the newest `step_*` folder is one to go on from. Learners write and sync their part themselves: the run folder must be
one that their nodes see. `trainer.json` says where the loop stood, and names the learners' files with their sizes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path

from marl_ray.core.errors import UserError
from marl_ray.core.files import fsync, write_atomically
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState

STATE_FILE = "trainer.json"
NAME = re.compile(r"step_(\d{6,})")


class Checkpoints:
    """The checkpoints of one run, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, step: int, policy: PolicyId) -> Path:
        """The empty folder of one policy's part, in a hidden one."""
        part = self.policy_folder(self._hidden(step), policy)
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        return part

    def commit(self, state: TrainerState, keep: int) -> Path:
        """All parts are there, and on disk: make it visible, and delete all but the newest `keep`, at least 1.

        When this returns, it is on disk as a whole, and what it covers may be deleted elsewhere.
        """
        path = self._hidden(state.step)
        parts = sorted(file for file in path.rglob("*") if file.is_file())
        files = {str(file.relative_to(path)): file.stat().st_size for file in parts}
        write_atomically(path / STATE_FILE, json.dumps({**asdict(state), "files": files}).encode())
        final = path.with_name(path.name.removeprefix("."))
        if final.exists():
            self._discard(final)
        os.replace(path, final)
        fsync(self.folder)
        for old in self.all()[:-keep]:
            self._discard(old)
        return final

    def _discard(self, path: Path) -> None:
        """Delete a checkpoint: it is hidden first, so that one half of it is never taken for the whole."""
        hidden = path.with_name(f".former_{path.name}")
        shutil.rmtree(hidden, ignore_errors=True)
        os.replace(path, hidden)
        shutil.rmtree(hidden)

    def all(self) -> list[Path]:
        """Complete checkpoints, oldest first. What has another name, or no trainer.json, is none."""
        if not self.folder.is_dir():
            return []
        found = [path for path in self.folder.iterdir() if NAME.fullmatch(path.name) and (path / STATE_FILE).exists()]
        return sorted(found, key=step_of)

    def latest(self) -> tuple[Path, TrainerState] | None:
        """The newest complete one, if there is any. Raises UserError as `state_of` does."""
        found = self.all()
        return (found[-1], state_of(found[-1])) if found else None

    def _hidden(self, step: int) -> Path:
        return self.folder / f".step_{step:06d}"

    @staticmethod
    def policy_folder(path: Path, policy: PolicyId) -> Path:
        """Where one policy's learner writes."""
        return path / policy.key


def step_of(path: Path) -> int:
    """The steps that a checkpoint has seen."""
    return int(path.name.removeprefix("step_"))


def state_of(path: Path) -> TrainerState:
    """Where the loop stood. Raises UserError where what was written is not there any more, or not as it was."""
    mend = f"copy it again, or delete {path} to go on from before it"
    file = path / STATE_FILE
    try:
        saved = json.loads(file.read_text())
        counts = [*(saved[name] for name in ("step", "env_steps", "learned")), saved.get("draws", 0)]
        files = saved.get("files", ())
        sizes = files if isinstance(files, dict) else dict.fromkeys(files)  # older ones have no sizes, or no files
        harm = next(filter(None, (_harm(path / name, size) for name, size in sizes.items())), None)
        sound = all(type(count) is int and count >= 0 for count in counts) and counts[0] == step_of(path)
    except (ValueError, KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise UserError(f"{file} is damaged: {mend}")
    if harm:
        raise UserError(f"{harm}: {mend}")
    return TrainerState(*counts)


def _harm(file: Path, size: int | None) -> str | None:
    """What became of a file of `size` bytes; None: nothing that can be seen without reading it."""
    if not file.exists():
        return f"{file} is not there"
    found = file.stat().st_size
    return None if size in (None, found) else f"{file} has {found} bytes of {size}"
