"""The batch log: the batches of every step, on disk before their first optimizer step.

A checkpoint and the later batches determine a learner's exact weights. A step is one file, `step_000012.npz`, written
atomically: a JSON header and flat arrays per agent, in which lengths and counts separate the items. Its last bytes, the
comment of the archive, are the SHA-256 of all preceding bytes. Texts are not stored: completions read from the log have
the text "".
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from marl_ray.core.batch import Batch, CriticSample, Group, MiniBatch
from marl_ray.core.episode import Completion
from marl_ray.core.errors import UserError
from marl_ray.core.files import write_atomically
from marl_ray.core.text import pluralize
from marl_ray.telemetry.metrics import EpisodeRecord, MetricRow

FORMAT = 2
DIGEST_BYTES = 64  # SHA-256 in hexadecimal
NAME = re.compile(r"step_(\d{6,})\.npz")


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
        return self.folder / f"step_{step:06d}.npz"

    def append(self, logged: LoggedStep) -> None:
        """Write a step durably. Raises OSError, which names the file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path(logged.step), _packed(logged))

    def read(self, step: int, agents: int | None = None) -> LoggedStep:
        """Return a step. Raises UserError if the file is missing, damaged, or has another number of agents."""
        arrays, header = self._open(step)
        if agents not in (None, header["agents"]):
            raise self._wrong_agents(step, header["agents"])
        batches = tuple(_batch(arrays, header, agent) for agent in range(header["agents"]))
        samples, skipped = header["draws"], tuple(header["skipped"])
        return LoggedStep(step, batches, header["joint_samples"], header["row"], header["episodes"], samples, skipped)

    def prompt_samples(self, step: int) -> int:
        """Return the number of prompt samples of a step. Raises UserError as `read` does."""
        return self._open(step)[1]["draws"]

    def batch(self, step: int, agent: int) -> Batch:
        """Return one agent's batch. Raises UserError as `read` does."""
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
        for old in (logged for logged in self.steps() if logged < step):
            self.path(old).unlink(missing_ok=True)

    def drop_from(self, step: int) -> None:
        """Delete the steps from `step` on."""
        for later in (logged for logged in self.steps() if logged >= step):
            self.path(later).unlink(missing_ok=True)

    def _open(self, step: int) -> tuple[Any, dict[str, Any]]:
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
        arrays = np.load(io.BytesIO(content), allow_pickle=False)
        header = json.loads(arrays["header"].tobytes())
        if header["format"] != FORMAT:
            formats = f"has format {header['format']}, and this version reads {FORMAT}"
            raise UserError(f"{path} {formats}: use the version that wrote it, or delete it")
        if header["step"] != step:
            raise UserError(f"{path} holds step {header['step']}: restore its name, or delete it")
        return arrays, header

    def _wrong_agents(self, step: int, agents: int) -> UserError:
        return UserError(
            f"{self.path(step)} is of a run of {pluralize(agents, 'agent')}, not of this run: copy this run's file "
            f"again, or delete it, and --resume repeats the run from step {step}"
        )


def _packed(logged: LoggedStep) -> bytes:
    """Return the content of a step's file."""
    reasons: dict[str, int] = {}
    schemas: dict[str, int] = {}
    arrays: dict[str, npt.NDArray[Any]] = {}
    for agent, batch in enumerate(logged.batches):
        if batch.step != logged.step:
            raise ValueError(f"agent {agent}'s batch is of step {batch.step}, not {logged.step}")
        arrays |= {f"agent_{agent}/{name}": values for name, values in _arrays(batch, reasons, schemas).items()}
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
        "json_schemas": list(schemas),
    }
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = bytes(DIGEST_BYTES)
    content = buffer.getvalue()[:-DIGEST_BYTES]
    return content + _digest(content)


def _arrays(batch: Batch, reasons: dict[str, int], schemas: dict[str, int]) -> dict[str, npt.NDArray[Any]]:
    """Return a batch as arrays, which store all numbers exactly. New finish reasons are added to `reasons`, and new
    schemas of constrained completions to `schemas`."""
    groups = [group for mini_batch in batch.mini_batches for group in mini_batch.groups]
    completions = [completion for group in groups for completion in group.completions]
    spans = [span for completion in completions for span in completion.spans]
    for group in groups:
        if not len(group.completions) == len(group.returns) == len(group.weights):
            raise ValueError("a group needs one return and one weight per completion")
    for completion in completions:
        if len(completion.token_ids) != len(completion.logprobs):
            raise ValueError(f"{len(completion.token_ids)} tokens have {len(completion.logprobs)} logprobs")
    fields: dict[str, tuple[npt.DTypeLike, Iterable[Any]]] = {
        "groups": (np.int64, (len(mini_batch.groups) for mini_batch in batch.mini_batches)),
        "normalizers": (np.int64, (mini_batch.normalizer for mini_batch in batch.mini_batches)),
        "turns": (np.int64, (group.turn for group in groups)),
        "prompt_lengths": (np.int64, (len(group.prompt_ids) for group in groups)),
        "completions": (np.int64, (len(group.completions) for group in groups)),
        "baselines": (np.int64, (len(group.baselines) for group in groups)),
        "prompt_ids": (np.int32, (token for group in groups for token in group.prompt_ids)),
        "returns": (np.float64, (value for group in groups for value in group.returns)),
        "weights": (np.float64, (weight for group in groups for weight in group.weights)),
        "lengths": (np.int64, (len(completion.token_ids) for completion in completions)),
        "finish_reasons": (np.int64, (reasons.setdefault(c.finish_reason, len(reasons)) for c in completions)),
        "spans": (np.int64, (len(completion.spans) for completion in completions)),
        "baseline_values": (np.float64, (value for group in groups for value in group.baselines)),
        "token_ids": (np.int32, (token for completion in completions for token in completion.token_ids)),
        "logprobs": (np.float64, (logprob for completion in completions for logprob in completion.logprobs)),
        "span_versions": (np.int64, (version for version, _ in spans)),
        "span_lengths": (np.int64, (length for _, length in spans)),
    }
    if samples := [group.critic_sample for group in groups if group.critic_sample is not None]:
        if len(samples) != len(groups):
            raise ValueError(f"{len(samples)} of {len(groups)} groups have a critic sample")
        successors = [states for sample in samples for states in sample.successors]
        fields |= {
            "state_lengths": (np.int64, (len(sample.state) for sample in samples)),
            "state_ids": (np.int32, (token for sample in samples for token in sample.state)),
            "rewards": (np.float64, (reward for sample in samples for reward in sample.rewards)),
            "successors": (np.int64, (len(states) for states in successors)),
            "successor_lengths": (np.int64, (len(state) for states in successors for state in states)),
            "successor_ids": (np.int32, (token for states in successors for state in states for token in state)),
        }
    if any(completion.json_schema for completion in completions):
        numbers = [schemas.setdefault(completion.json_schema, len(schemas)) for completion in completions]
        fields["json_schemas"] = (np.int64, numbers)
    if any(group.siblings for group in groups):
        fields |= {
            "siblings": (np.int64, (len(group.siblings) for group in groups)),
            "sibling_numbers": (np.int64, (number for group in groups for number in group.siblings)),
            "call_lengths": (np.int64, (len(prompt) for group in groups for prompt in group.prompts)),
            "call_ids": (np.int32, (token for group in groups for prompt in group.prompts for token in prompt)),
        }
    return {name: np.array(list(values), dtype) for name, (dtype, values) in fields.items()}


def _batch(arrays: Any, header: Mapping[str, Any], agent: int) -> Batch:
    """Return an agent's batch: the inverse of `_arrays` except for texts."""
    prefix = f"agent_{agent}/"
    values: dict[str, Iterator[Any]] = {
        name.removeprefix(prefix): iter(arrays[name].tolist()) for name in arrays if name.startswith(prefix)
    }

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
            json_schema=header["json_schemas"][next(values["json_schemas"])] if "json_schemas" in values else "",
        )

    def group() -> Group:
        turn, prompt_length, size, baselines = (
            next(values[name]) for name in ("turns", "prompt_lengths", "completions", "baselines")
        )
        at_node = Group(
            turn,
            take("prompt_ids", prompt_length),
            tuple(completion() for _ in range(size)),
            take("returns", size),
            take("weights", size),
            take("baseline_values", baselines),
            critic_sample(size) if "rewards" in values else None,
            agent=agent,
        )
        if "siblings" not in values:
            return at_node
        siblings, prompts = calls()
        return replace(at_node, siblings=siblings, prompts=prompts)

    def calls() -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        size = next(values["siblings"])
        return take("sibling_numbers", size), tuple(take("call_ids", n) for n in take("call_lengths", size))

    def critic_sample(size: int) -> CriticSample:
        state, rewards = take("state_ids", next(values["state_lengths"])), take("rewards", size)
        counts = take("successors", size)
        lengths = (take("successor_lengths", count) for count in counts)
        return CriticSample(state, rewards, tuple(tuple(take("successor_ids", n) for n in each) for each in lengths))

    sizes = zip(list(values["groups"]), list(values["normalizers"]), strict=True)
    mini_batches = (MiniBatch(tuple(group() for _ in range(count)), normalizer) for count, normalizer in sizes)
    return Batch(header["step"], tuple(mini_batches))


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
