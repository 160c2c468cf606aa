"""The folder of a run: the names of its files, and the training history of its learners."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from marl_ray.core.batch import Batch
from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home, fsync, write_atomically
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState
from marl_ray.models.weight_files import TRAINED_FILE
from marl_ray.storage.checkpoints import Checkpoints
from marl_ray.storage.scale_requests import ScaleRequests

if TYPE_CHECKING:
    from marl_ray.storage.batch_log import BatchLog

FORMER_CONFIG = re.compile(r"config\.step_(\d{6,})\.yaml")


class RunFolder:
    """The paths in the folder of a run, which need not exist yet. Raises UserError for the home of an unknown user."""

    def __init__(self, path: Path) -> None:
        self.path = expand_home(path).absolute()
        self.config = self.path / "config.yaml"  # the resolved config
        self.metrics = self.path / "metrics.jsonl"  # one row per step and per evaluation
        self.episodes = self.path / "episodes.jsonl"  # a few episodes per row of metrics.jsonl
        self.first_prompts = self.path / "first_prompts.txt"  # one rendered prompt per agent
        self.samples = self.path / "sample_episodes.txt"  # episodes of the last evaluation as text
        self.plot = self.path / "returns.png"  # plot of the reward over joint samples
        self.report = self.path / "report.html"  # the page that `marl-ray report` writes
        self.machine = self.path / "machine.json"  # versions and machines of the last start
        self.tasks = self.path / "tasks.json"  # digests of the tasks in their order
        self.trackers = self.path / "trackers.json"  # the ids of the run in trackers of metrics
        self.timeline = self.path / "timeline.jsonl"  # begin and end of each part of a step
        self.error = self.path / "error.txt"  # the error that ended the run, an unexpected one with its traceback
        self.models = self.path / "models"  # trained models, one folder per policy
        self.log_file = self.path / "run.log"  # log records with timestamps
        self.lock = self.path / "run.lock"  # held by the process that writes to the folder
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self.requests = ScaleRequests(self.path / "requests")

    @cached_property
    def log(self) -> BatchLog:
        """The batch log of the run."""
        # Its formats need numpy and Arrow, which commands that read metrics and episodes start without.
        from marl_ray.storage.batch_log import BatchLog

        return BatchLog(self.path / "batches")

    def __str__(self) -> str:
        return str(self.path)

    def require(self, file: Path) -> None:
        """Raise UserError if a file that every run has is missing. The message names the newest run in the folder."""
        if file.exists():
            return
        problem = f"{self} is not a run folder: {file.name} is missing"
        runs = sorted(self.path.glob(f"*/{file.name}"), key=lambda inner: inner.stat().st_mtime)
        if runs:
            problem += f": did you mean {runs[-1].parent}?"
        raise UserError(problem)

    def model(self, policy: PolicyId) -> Path:
        """Return the folder of a policy's trained model, in the format of transformers."""
        return self.models / policy.key

    def trained_steps(self, policies: Sequence[PolicyId]) -> int | None:
        """Return the minimum number of steps of the trained models; None if a model is missing or does not state it."""
        steps = []
        for policy in policies:
            file = self.model(policy) / TRAINED_FILE
            if not file.exists():
                return None
            steps.append(json.loads(file.read_text(encoding="utf-8"))["steps"])
        return min(steps)

    def make(self) -> None:
        """Create the folder. Raises UserError if no file can be written to it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise UserError(f"output folder {self} cannot be written ({error.strerror}): set output.base_dir") from None

    def write_config(self, text: str, done: int) -> None:
        """Write config.yaml for the steps after step `done`, and keep the earlier config if it differs.

        Former configs of later steps are deleted, since a resumed run repeats these steps with the new config.
        """
        later = [path for step, path in self.former_configs().items() if step > done]
        # The config with which the steps up to `done` were made.
        before = later[0] if later else self.config
        former = self.former_config(done)
        is_new_start = done == 0 or not before.exists()
        if not is_new_start and not former.exists() and before.read_text(encoding="utf-8") != text:
            write_atomically(former, before.read_bytes())
        write_atomically(self.config, text.encode())
        for path in later:
            path.unlink()

    def former_config(self, done: int) -> Path:
        """Return the path of the config of the steps up to `done`, if later steps have another config."""
        return self.path / f"config.step_{done:06d}.yaml"

    def former_configs(self) -> dict[int, Path]:
        """Return the paths of all former configs by step, in order."""
        paths = {}
        for path in self.path.glob("config.step_*.yaml"):
            match = FORMER_CONFIG.fullmatch(path.name)
            if match:
                paths[int(match[1])] = path
        return dict(sorted(paths.items()))

    def commit(self, state: TrainerState, keep: int) -> None:
        """Flush metrics and episodes, whose rows a resumed run does not write again; then commit the checkpoint."""
        for file in (self.metrics, self.episodes):
            if file.exists():
                fsync(file)
        self.checkpoints.commit(state, keep)

    @property
    def is_empty(self) -> bool:
        """Whether the folder contains no result of a run."""
        return set(self.path.iterdir()) <= set(self._files_of_start)

    @property
    def _files_of_start(self) -> tuple[Path, ...]:
        """Files that exist before the first row. The lock is the last one to be deleted."""
        return self.config, self.machine, self.first_prompts, self.tasks, self.log_file, self.trackers, self.lock

    def remove_incomplete(self) -> None:
        """Delete incomplete checkpoints and models of an interrupted run."""
        for parent in (self.checkpoints.folder, self.models):
            for path in parent.glob(".*"):
                shutil.rmtree(path, ignore_errors=True)

    def remove_if_empty(self) -> None:
        """Delete the folder of a run that failed before its first row."""
        if self.is_empty:
            for file in self._files_of_start:
                file.unlink(missing_ok=True)
            with suppress(OSError):  # on NFS, an open file stays under another name
                os.rmdir(self.path)


def new_folder(base_dir: str, run_name: str | None, prefix: str) -> RunFolder:
    """Return the folder `run_name` (default: `prefix`, time and process id) below `base_dir`."""
    if not run_name:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        file_prefix = prefix.replace(":", ".")  # some file systems admit no colon
        run_name = f"{file_prefix}-{stamp}-{os.getpid()}"
    return RunFolder(Path(base_dir) / run_name)


class StoredHistory:
    """The `TrainingHistory` of one policy in a run folder, read anew at each call."""

    def __init__(self, folder: RunFolder, policy: PolicyId) -> None:
        self.folder = folder
        self.policy = policy

    def checkpoint(self) -> tuple[int, str] | None:
        """See `TrainingHistory`. Raises UserError for a damaged checkpoint."""
        latest = self.folder.checkpoints.latest()
        if latest is None:
            return None
        path, state = latest
        return state.step, str(path / self.policy.key)

    def batch(self, step: int) -> Batch:
        from marl_ray.credit.groups import merge_batches  # which imports the whole config

        batches = [self.folder.log.batch(step, agent) for agent in self.policy.agents]
        return merge_batches(batches)
