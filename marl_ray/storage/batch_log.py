"""The batch log: the batches of every step, on disk before a learner uses them.

A learner's state is a function of its batches, so a checkpoint and the later batches determine its exact weights. A step
is one file, `step_000012.npz`, which is written atomically and rejected if damaged. It contains, per agent, the arrays of
`FIELDS`, flat and without padding, and a JSON header. Its last bytes, the comment of the archive, are the SHA-256 of all
preceding bytes; numpy reads the file like any other.

Learners read token ids, never text, so texts are not stored: completions read from the log have the text "".
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from marl_ray.core.batch import Batch, CriticSample, Group, MiniBatch
from marl_ray.core.episode import Completion
from marl_ray.core.errors import UserError
from marl_ray.core.files import write_atomically
from marl_ray.core.text import pluralize
from marl_ray.telemetry.episode_records import EpisodeRecord
from marl_ray.telemetry.metrics import MetricRow

FORMAT = 2
DIGEST_BYTES = 64
"""SHA-256 in hexadecimal."""
NAME = re.compile(r"step_(\d{6,})\.npz")
FIELDS = {
    # per mini-batch
    "groups": np.int64,
    "normalizers": np.int64,
    # per group
    "turns": np.int64,
    "prompt_lengths": np.int64,
    "completions": np.int64,
    "baselines": np.int64,
    # per token of the groups' prompts
    "prompt_ids": np.int32,
    # per completion; finish_reasons are indices into the header's list
    "returns": np.float64,
    "weights": np.float64,
    "lengths": np.int64,
    "finish_reasons": np.int64,
    "spans": np.int64,
    # per baseline of the groups
    "baseline_values": np.float64,
    # per token of the completions
    "token_ids": np.int32,
    "logprobs": np.float64,
    # per span of the completions
    "span_versions": np.int64,
    "span_lengths": np.int64,
}
"""The arrays of an agent's batch and their types. `groups`, `completions`, `baselines` and `spans` are counts per
mini-batch, group, group and completion. Numbers are stored exactly."""
CRITIC_FIELDS = {
    # per group
    "state_lengths": np.int64,
    # per token of the groups' states
    "state_ids": np.int32,
    # per completion
    "rewards": np.float64,
    "successors": np.int64,
    # per successor state
    "successor_lengths": np.int64,
    # per token of the successor states
    "successor_ids": np.int32,
}
"""Further arrays of runs with a critic, where every group has a critic sample."""


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """The rollout of step `step` (from 0): the data to learn from it and to record it again.

    `batches` has one batch per agent. `joint_samples` is the increase of env_steps. `row` contains the metrics that are
    known before the update, `episodes` the records for episodes.jsonl. With dynamic sampling, `prompt_samples` is the number of
    prompt samples of the step, and `skipped` are the samples that are not learned from.
    """

    step: int
    batches: tuple[Batch, ...]
    joint_samples: int
    row: MetricRow
    episodes: Sequence[EpisodeRecord]
    prompt_samples: int = 0
    skipped: tuple[int, ...] = ()


class BatchLog:
    """The batch log of one run in its own folder, which need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, step: int) -> Path:
        """Return the path of a step's file."""
        return self.folder / f"step_{step:06d}.npz"

    def append(self, logged: LoggedStep) -> None:
        """Write a step durably. Raises OSError, which names the file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path(logged.step), _packed(logged))

    def read(self, step: int, agents: int | None = None) -> LoggedStep:
        """Return a step. Raises UserError if the file is missing, damaged, or not of a run of `agents` agents (None: any
        number)."""
        arrays, header = self._open(step)
        if agents not in (None, header["agents"]):
            raise self._wrong_agents(step, header["agents"])
        return LoggedStep(
            step,
            tuple(_batch(arrays, header, agent) for agent in range(header["agents"])),
            header["joint_samples"],
            header["row"],
            header["episodes"],
            header["draws"],
            tuple(header["skipped"]),
        )

    def prompt_samples(self, step: int) -> int:
        """Return the number of prompt samples of a step. Raises UserError as `read` does."""
        return self._open(step)[1]["draws"]

    def batch(self, step: int, agent: int) -> Batch:
        """Return one agent's batch of a step. Raises UserError as `read` does."""
        arrays, header = self._open(step)
        if agent >= header["agents"]:
            raise self._wrong_agents(step, header["agents"])
        return _batch(arrays, header, agent)

    def steps(self) -> list[int]:
        """Return the logged steps in order."""
        if not self.folder.is_dir():
            return []
        matches = [NAME.fullmatch(path.name) for path in self.folder.iterdir() if path.is_file()]
        return sorted(int(match[1]) for match in matches if match)

    def drop_before(self, step: int) -> None:
        """Delete the steps before `step`."""
        for old in self.steps():
            if old < step:
                self.path(old).unlink(missing_ok=True)

    def drop_from(self, step: int) -> None:
        """Delete the steps from `step` on."""
        for later in self.steps():
            if later >= step:
                self.path(later).unlink(missing_ok=True)

    def _open(self, step: int) -> tuple[Any, dict[str, Any]]:
        """Return the arrays by name and the header."""
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
            raise UserError(
                f"{path} is damaged: copy it again, or delete it, and --resume repeats the run from step {step}"
            )
        arrays = np.load(io.BytesIO(content), allow_pickle=False)
        header = json.loads(arrays["header"].tobytes())
        if header["format"] != FORMAT:
            raise UserError(
                f"{path} has format {header['format']}, and this version reads {FORMAT}: use the version that wrote "
                "it, or delete it"
            )
        if header["step"] != step:
            raise UserError(f"{path} holds step {header['step']}: restore its name, or delete it")
        return arrays, header

    def _wrong_agents(self, step: int, agents: int) -> UserError:
        return UserError(
            f"{self.path(step)} is of a run of {pluralize(agents, 'agent')}, not of this run: copy this run's file again, "
            f"or delete it, and --resume repeats the run from step {step}"
        )


def _packed(logged: LoggedStep) -> bytes:
    """Return the content of a step's file."""
    reasons: dict[str, int] = {}
    arrays = {}
    for agent, batch in enumerate(logged.batches):
        if batch.step != logged.step:
            raise ValueError(f"agent {agent}'s batch is of step {batch.step}, not {logged.step}")
        for name, values in _flat(batch, reasons).items():
            arrays[f"agent_{agent}/{name}"] = np.array(values, dtype=(FIELDS | CRITIC_FIELDS)[name])
    header = {
        "format": FORMAT,
        "step": logged.step,
        "agents": len(logged.batches),
        "joint_samples": logged.joint_samples,
        "row": dict(logged.row),
        "episodes": list(logged.episodes),
        "draws": logged.prompt_samples,
        "skipped": logged.skipped,
        "finish_reasons": list(reasons),
    }
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = bytes(DIGEST_BYTES)
    content = buffer.getvalue()[:-DIGEST_BYTES]
    return content + _digest(content)


def _flat(batch: Batch, reasons: dict[str, int]) -> dict[str, list[Any]]:
    """Return the values of `FIELDS`, and of `CRITIC_FIELDS` with a critic. New finish reasons are added to `reasons`."""
    groups = [group for mini_batch in batch.mini_batches for group in mini_batch.groups]
    critic_samples = [group.critic_sample for group in groups if group.critic_sample is not None]
    flat: dict[str, list[Any]] = {name: [] for name in (FIELDS | CRITIC_FIELDS if critic_samples else FIELDS)}
    if len(critic_samples) not in (0, len(groups)):
        raise ValueError(f"{len(critic_samples)} of {len(groups)} groups have a critic sample")
    for sample in critic_samples:
        flat["state_lengths"].append(len(sample.state))
        flat["state_ids"] += sample.state
        flat["rewards"] += sample.rewards
        for states in sample.successors:
            flat["successors"].append(len(states))
            flat["successor_lengths"] += map(len, states)
            flat["successor_ids"] += (token for state in states for token in state)
    for mini_batch in batch.mini_batches:
        flat["groups"].append(len(mini_batch.groups))
        flat["normalizers"].append(mini_batch.normalizer)
        for group in mini_batch.groups:
            flat["turns"].append(group.turn)
            flat["prompt_lengths"].append(len(group.prompt_ids))
            flat["completions"].append(len(group.completions))
            flat["baselines"].append(len(group.baselines))
            flat["prompt_ids"] += group.prompt_ids
            flat["baseline_values"] += group.baselines
            for completion, value, weight in zip(group.completions, group.returns, group.weights, strict=True):
                if len(completion.token_ids) != len(completion.logprobs):
                    raise ValueError(f"{len(completion.token_ids)} tokens have {len(completion.logprobs)} logprobs")
                flat["returns"].append(value)
                flat["weights"].append(weight)
                flat["lengths"].append(len(completion.token_ids))
                flat["finish_reasons"].append(reasons.setdefault(completion.finish_reason, len(reasons)))
                flat["spans"].append(len(completion.spans))
                flat["token_ids"] += completion.token_ids
                flat["logprobs"] += completion.logprobs
                flat["span_versions"] += (version for version, _ in completion.spans)
                flat["span_lengths"] += (length for _, length in completion.spans)
    return flat


def _batch(arrays: Any, header: Mapping[str, Any], agent: int) -> Batch:
    """Return an agent's batch: the inverse of `_flat` except for texts."""
    names = [name for name in FIELDS | CRITIC_FIELDS if f"agent_{agent}/{name}" in arrays]
    values: dict[str, Iterator[Any]] = {name: iter(arrays[f"agent_{agent}/{name}"].tolist()) for name in names}

    def take(name: str, count: int) -> tuple[Any, ...]:
        return tuple(islice(values[name], count))

    def completion() -> Completion:
        length, reason, spans = (next(values[name]) for name in ("lengths", "finish_reasons", "spans"))
        return Completion(
            token_ids=take("token_ids", length),
            text="",
            logprobs=take("logprobs", length),
            finish_reason=header["finish_reasons"][reason],
            spans=tuple(zip(take("span_versions", spans), take("span_lengths", spans), strict=True)),
        )

    def group() -> Group:
        turn, prompt_length, size, baselines = (
            next(values[name]) for name in ("turns", "prompt_lengths", "completions", "baselines")
        )
        return Group(
            turn,
            take("prompt_ids", prompt_length),
            tuple(completion() for _ in range(size)),
            take("returns", size),
            take("weights", size),
            take("baseline_values", baselines),
            critic_sample(size) if "rewards" in values else None,
        )

    def critic_sample(size: int) -> CriticSample:
        state, rewards = take("state_ids", next(values["state_lengths"])), take("rewards", size)
        successors = tuple(
            tuple(take("successor_ids", length) for length in take("successor_lengths", count))
            for count in take("successors", size)
        )
        return CriticSample(state, rewards, successors)

    return Batch(
        header["step"],
        tuple(
            MiniBatch(tuple(group() for _ in range(groups)), normalizer)
            for groups, normalizer in zip(list(values["groups"]), list(values["normalizers"]), strict=True)
        ),
    )


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
