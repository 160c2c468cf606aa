"""The batch log: the batches of every step, on disk before their first optimizer step.

A checkpoint and the later batches determine a learner's exact weights. A step is one file, `step_000012.arrow`, written
atomically (`marl_ray.storage.batch_table`); its last bytes are the SHA-256 of all preceding bytes. Files of version 0.2
(`step_000012.npz`) are read too. Texts are not stored: completions read from the log have the text "".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from marl_ray.core.batch import Batch
from marl_ray.core.errors import UserError
from marl_ray.core.files import write_atomically
from marl_ray.core.text import pluralize
from marl_ray.storage import batch_log_0_2
from marl_ray.storage.batch_log_0_2 import OldStep
from marl_ray.telemetry.episode_records import EpisodeRecord
from marl_ray.telemetry.metrics import MetricRow

if TYPE_CHECKING:
    from marl_ray.storage.batch_table import StepTable

DIGEST_BYTES = 64  # SHA-256 in hexadecimal
NAME = re.compile(r"step_(\d{6,})\.(arrow|npz)")


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """The rollout of step `step` (from 0), with one batch per agent.

    `joint_samples` is the increase of env_steps. `row` has the metrics before the update, `episodes` the records for
    episodes.jsonl. With dynamic sampling, `prompt_samples` counts the prompt samples of the step, and `skipped` are the
    samples that are not learned from.
    """

    step: int
    batches: tuple[Batch, ...]
    joint_samples: int
    row: MetricRow
    episodes: Sequence[EpisodeRecord]
    prompt_samples: int = 0
    skipped: tuple[int, ...] = ()


class BatchLog:
    """The batch log of one run, in a folder that need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, step: int) -> Path:
        """Return the file of a step: of version 0.2 if only that one exists, otherwise of this version."""
        path = self.folder / f"step_{step:06d}.arrow"
        old = path.with_suffix(".npz")
        if old.exists() and not path.exists():
            return old
        return path

    def append(self, logged: LoggedStep) -> None:
        """Write a step durably. Raises OSError, which names the file."""
        from marl_ray.storage.batch_table import encode_step  # pyarrow comes with the extra `train`

        for agent, batch in enumerate(logged.batches):
            if batch.step != logged.step:
                raise ValueError(f"agent {agent}'s batch is of step {batch.step}, not {logged.step}")
        header = {
            "step": logged.step,
            "joint_samples": logged.joint_samples,
            "row": dict(logged.row),
            "episodes": list(logged.episodes),
            "draws": logged.prompt_samples,
            "skipped": logged.skipped,
        }
        content = encode_step(header, logged.batches)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path(logged.step).with_suffix(".arrow"), content + _digest(content))

    def read(self, step: int, agents: int | None = None) -> LoggedStep:
        """Return a step. Raises UserError if the file is missing, damaged, or has another number of agents."""
        stored = self._open(step)
        header = stored.header
        if agents not in (None, header["agents"]):
            raise self._wrong_agents(step, header["agents"])
        return LoggedStep(
            step=step,
            batches=tuple(stored.batch(agent) for agent in range(header["agents"])),
            joint_samples=header["joint_samples"],
            row=header["row"],
            episodes=header["episodes"],
            prompt_samples=header["draws"],
            skipped=tuple(header["skipped"]),
        )

    def prompt_samples(self, step: int) -> int:
        """Return the number of prompt samples of a step. Raises UserError as `read` does."""
        samples: int = self._open(step).header["draws"]
        return samples

    def batch(self, step: int, agent: int) -> Batch:
        """Return one agent's batch. Raises UserError as `read` does."""
        stored = self._open(step)
        if agent >= stored.header["agents"]:
            raise self._wrong_agents(step, stored.header["agents"])
        return stored.batch(agent)

    def steps(self) -> list[int]:
        """Return the logged steps in order."""
        if not self.folder.is_dir():
            return []
        matches = [NAME.fullmatch(path.name) for path in self.folder.iterdir() if path.is_file()]
        return sorted({int(match[1]) for match in matches if match})

    def drop_before(self, step: int) -> None:
        """Delete the steps before `step`."""
        for old in self.steps():
            if old < step:
                self._delete(old)

    def drop_from(self, step: int) -> None:
        """Delete the steps from `step` on."""
        for later in self.steps():
            if later >= step:
                self._delete(later)

    def _delete(self, step: int) -> None:
        for suffix in (".npz", ".arrow"):
            self.path(step).with_suffix(suffix).unlink(missing_ok=True)

    def _open(self, step: int) -> StepTable | OldStep:
        from marl_ray.storage.batch_table import FORMAT, StepTable

        path = self.path(step)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise UserError(
                f"{path} is missing: the batch log keeps only batches since the oldest checkpoint, or all batches "
                "with output.keep_batches: true"
            ) from None
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror})") from None
        if _digest(content[:-DIGEST_BYTES]) != content[-DIGEST_BYTES:]:
            repair = f"copy it again, or delete it, and --resume repeats the run from step {step}"
            raise UserError(f"{path} is damaged: {repair}")
        stored: StepTable | OldStep
        if path.suffix == ".npz":
            stored = OldStep(content)
            known = batch_log_0_2.FORMAT
        else:
            stored = StepTable(content[:-DIGEST_BYTES])
            known = FORMAT
        written = stored.header["format"]
        if written != known:
            formats = f"has format {written}, and this version reads {known}"
            raise UserError(f"{path} {formats}: use the version that wrote it, or delete it")
        if stored.header["step"] != step:
            raise UserError(f"{path} holds step {stored.header['step']}: restore its name, or delete it")
        return stored

    def _wrong_agents(self, step: int, agents: int) -> UserError:
        return UserError(
            f"{self.path(step)} is of a run of {pluralize(agents, 'agent')}, not of this run: copy this run's file "
            f"again, or delete it, and --resume repeats the run from step {step}"
        )


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
