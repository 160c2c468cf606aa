"""The folder of a run: the one place that knows what its files are called."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home, fsync, write_atomically
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState
from marl_ray.models.weight_files import TRAINED_FILE
from marl_ray.storage.batch_log import BatchLog
from marl_ray.storage.checkpoints import Checkpoints
from marl_ray.storage.scale_requests import ScaleRequests

FORMER_CONFIG = re.compile(r"config\.step_(\d{6,})\.yaml")


class RunFolder:
    """Paths in the folder of a run, which need not exist yet. Raises UserError for the home (~name) of nobody."""

    def __init__(self, path: Path) -> None:
        self.path = expand_home(path).absolute()
        self.config = self.path / "config.yaml"
        """Everything resolved."""
        self.metrics = self.path / "metrics.jsonl"
        """One row a step and one an evaluation."""
        self.episodes = self.path / "episodes.jsonl"
        """A few episodes a row."""
        self.samples = self.path / "sample_episodes.txt"
        """The last evaluation, to read."""
        self.plot = self.path / "returns.png"
        """Reward over joint samples."""
        self.report = self.path / "report.html"
        """All of it for people, as `marl-ray report` writes it."""
        self.machine = self.path / "machine.json"
        """Versions, and the machines that the run was last started on."""
        self.tensorboard = self.path / "tensorboard"
        """Event files, if they are asked for."""
        self.error = self.path / "error.txt"
        """The traceback of a run that a bug ended."""
        self.models = self.path / "models"
        """The trained models."""
        self.log_file = self.path / "run.log"
        """Log records with timestamps."""
        self.lock = self.path / "run.lock"
        """Held by whoever writes here."""
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self.log = BatchLog(self.path / "batches")
        self.requests = ScaleRequests(self.path / "requests")

    def __str__(self) -> str:
        return str(self.path)

    def model(self, policy: PolicyId) -> Path:
        """A policy's trained model, as transformers loads it."""
        return self.models / policy.key

    def trained_steps(self, policies: Sequence[PolicyId]) -> int | None:
        """The steps that all of its trained models have learned for: the fewest, where a run that went on from its end
        was interrupted between them. None where one is not there, or does not say."""
        files = [self.model(policy) / TRAINED_FILE for policy in policies]
        return min(json.loads(file.read_text())["steps"] for file in files) if all(map(Path.exists, files)) else None

    def make(self) -> None:
        """Create it, and see that files can be written there. Raises UserError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise UserError(f"output folder {self} cannot be written ({error.strerror}): set output.base_dir") from None

    def write_config(self, text: str, done: int) -> None:
        """Write config.yaml for what comes after step `done`.

        The one of the steps up to there is kept as `former_config(done)` if it says something else. Those of later
        steps go: a run that goes on from an earlier checkpoint plays and learns such steps anew, under this one.
        """
        former, formers = self.former_config(done), self.former_configs()
        later = [path for step, path in formers.items() if step > done]
        before = later[0] if later else self.config
        if done and before.exists() and before.read_text() != text and not former.exists():
            write_atomically(former, before.read_bytes())
        write_atomically(self.config, text.encode())
        for path in later:
            path.unlink()

    def former_config(self, done: int) -> Path:
        """The config of the steps up to `done`, where a resumed run had another one from there on."""
        return self.path / f"config.step_{done:06d}.yaml"

    def former_configs(self) -> dict[int, Path]:
        """All of them by step, in order."""
        found = {FORMER_CONFIG.fullmatch(path.name): path for path in self.path.glob("config.step_*.yaml")}
        return dict(sorted((int(match[1]), path) for match, path in found.items() if match))

    def commit(self, state: TrainerState, keep: int) -> None:
        """See `Checkpoints.commit`. A run that goes on from there does not write the rows up to it again, so they are
        on disk before it."""
        for file in (self.metrics, self.episodes):
            if file.exists():
                fsync(file)
        self.checkpoints.commit(state, keep)

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing that a run did."""
        return {path.name for path in self.path.iterdir()} <= {
            self.config.name,
            self.machine.name,
            self.lock.name,
            self.log_file.name,
        }

    def remove_hidden(self) -> None:
        """Checkpoints and models that were being written when the run ended, which are none."""
        for place in (self.checkpoints.folder, self.models):
            for path in place.glob(".*"):
                shutil.rmtree(path, ignore_errors=True)

    def remove_if_empty(self) -> None:
        """A run that failed before its first row leaves nothing behind."""
        if self.is_empty:
            for file in (self.config, self.machine, self.log_file, self.lock):
                file.unlink(missing_ok=True)
            with suppress(OSError):  # a file that is open stays on NFS, under another name
                os.rmdir(self.path)


def new_folder(base_dir: str, run_name: str | None, prefix: str) -> RunFolder:
    """The folder of a new run, `run_name` below `base_dir`; without a name, one of `prefix`, time and process."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return RunFolder(Path(base_dir) / (run_name or f"{prefix.replace(':', '.')}-{stamp}-{os.getpid()}"))
