"""Checkpoints, written atomically.

A checkpoint is written to a hidden folder, which is renamed once all of its files are on disk, so every `step_*` folder
is complete. Learners write and sync their own parts, so their nodes must share the file system of the run folder.
`trainer.json` holds the `TrainerState` and the learners' files with their sizes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import astuple
from pathlib import Path

from marl_ray.core.errors import UserError
from marl_ray.core.files import fsync, write_atomically
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState

STATE_FILE = "trainer.json"
STATE_KEYS = ("step", "env_steps", "learned", "draws")
"""Names of the fields of `TrainerState` in the file, in order."""
NAME = re.compile(r"step_(\d{6,})")


class Checkpoints:
    """The checkpoints of one run, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, step: int, policy: PolicyId) -> Path:
        """Create and return the empty folder of one policy's part, `policy.key` in the hidden checkpoint."""
        part = self._hidden(step) / policy.key
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        return part

    def commit(self, state: TrainerState, keep: int) -> Path:
        """Make a checkpoint with complete parts visible and durable; delete all but the newest `keep` (at least 1)."""
        hidden = self._hidden(state.step)
        sizes = {}
        for file in sorted(hidden.rglob("*")):
            if file.is_file():
                sizes[str(file.relative_to(hidden))] = file.stat().st_size
        counts = dict(zip(STATE_KEYS, astuple(state), strict=True))
        content = {**counts, "files": sizes}
        write_atomically(hidden / STATE_FILE, json.dumps(content).encode())
        final = hidden.with_name(hidden.name.removeprefix("."))
        if final.exists():
            self._discard(final)  # of an earlier process, which did not reach a later checkpoint
        os.replace(hidden, final)
        fsync(self.folder)
        for old in self.all()[:-keep]:
            self._discard(old)
        return final

    def _discard(self, path: Path) -> None:
        """Hide a checkpoint, so that no reader sees it incomplete, then delete it."""
        hidden = path.with_name(f".former_{path.name}")
        shutil.rmtree(hidden, ignore_errors=True)
        os.replace(path, hidden)
        shutil.rmtree(hidden)

    def all(self) -> list[Path]:
        """Return the complete checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        complete = []
        for path in self.folder.iterdir():
            if NAME.fullmatch(path.name) and (path / STATE_FILE).exists():
                complete.append(path)
        return sorted(complete, key=checkpoint_step)

    def latest(self) -> tuple[Path, TrainerState] | None:
        """Return the newest complete checkpoint, if any. Raises UserError as `read_state` does."""
        paths = self.all()
        if not paths:
            return None
        newest = paths[-1]
        return newest, read_state(newest)

    def _hidden(self, step: int) -> Path:
        return self.folder / f".step_{step:06d}"


def checkpoint_step(path: Path) -> int:
    """Return the number of steps before a checkpoint."""
    return int(path.name.removeprefix("step_"))


def read_state(path: Path) -> TrainerState:
    """Return the state in a checkpoint. Raises UserError if a file is missing or damaged."""
    repair = f"copy it again, or delete {path} to resume from an earlier one"
    file = path / STATE_FILE
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        # Older checkpoints have no number of prompt samples.
        counts = [saved["step"], saved["env_steps"], saved["learned"], saved.get("draws", 0)]
        sizes = saved.get("files", ())
        if not isinstance(sizes, dict):
            sizes = dict.fromkeys(sizes)  # older still: a list of files, without sizes
        damages = [_damage(path / name, size) for name, size in sizes.items()]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{file} is damaged: {repair}") from None
    are_counts = all(type(count) is int and count >= 0 for count in counts)
    if not are_counts or counts[0] != checkpoint_step(path):
        raise UserError(f"{file} is damaged: {repair}")
    for damage in damages:
        if damage is not None:
            raise UserError(f"{damage}: {repair}")
    return TrainerState(*counts)


def _damage(file: Path, size: int | None) -> str | None:
    """Return a description if a file is missing or does not have `size` bytes (None: any size)."""
    if not file.exists():
        return f"{file} is missing"
    actual = file.stat().st_size
    if size in (None, actual):
        return None
    return f"{file} has {actual} bytes of {size}"
