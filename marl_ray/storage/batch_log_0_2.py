"""Reader of batch logs of version 0.2: `step_000012.npz`, a JSON header and flat arrays per agent.

Lengths and counts separate the items of an array. The last bytes of a file, the comment of the archive, are the SHA-256
of all preceding bytes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from marl_ray.core.batch import Batch, CriticSample, Group, MiniBatch
from marl_ray.core.episode import AgentCall, Completion, sibling_calls
from marl_ray.credit.advantages import UNNAMED

FORMAT = 2
Ids = tuple[int, ...]


class OldStep:
    """The content of one file, without its digest."""

    def __init__(self, content: bytes) -> None:
        self._arrays = np.load(io.BytesIO(content), allow_pickle=False)
        self.header: dict[str, Any] = json.loads(self._arrays["header"].tobytes())

    def batch(self, agent: int) -> Batch:
        """Return an agent's batch."""
        prefix = f"agent_{agent}/"
        arrays: dict[str, Iterator[Any]] = {}
        for name in self._arrays:
            if name.startswith(prefix):
                arrays[name.removeprefix(prefix)] = iter(self._arrays[name].tolist())
        groups = _Groups(arrays, self.header, agent)
        mini_batches: list[MiniBatch] = []
        for count, normalizer in zip(list(arrays["groups"]), list(arrays["normalizers"]), strict=True):
            mini_batches.append(MiniBatch(tuple(groups.next() for _ in range(count)), normalizer))
        return Batch(self.header["step"], tuple(mini_batches))


class _Groups:
    """The groups of one agent, read one after another from arrays of items."""

    def __init__(self, arrays: Mapping[str, Iterator[Any]], header: Mapping[str, Any], agent: int) -> None:
        self._arrays = arrays
        self._header = header
        self._agent = agent

    def next(self) -> Group:
        """Return the next group."""
        turn = self._one("turns")
        prompt = self._take("prompt_ids", self._one("prompt_lengths"))
        size = self._one("completions")
        baselines = self._one("baselines")
        completions = [self._completion() for _ in range(size)]
        returns = self._take("returns", size)
        weights = self._take("weights", size)
        values = self._take("baseline_values", baselines)
        sample = self._critic_sample(size) if "rewards" in self._arrays else None
        calls = self._calls(completions) or sibling_calls(prompt, completions, self._agent)
        inputs = {UNNAMED: values} if values else {}
        return Group(turn, calls, returns, weights, inputs, sample)

    def _one(self, name: str) -> int:
        value: int = next(self._arrays[name])
        return value

    def _take(self, name: str, count: int) -> tuple[Any, ...]:
        return tuple(islice(self._arrays[name], count))

    def _completion(self) -> Completion:
        length = self._one("lengths")
        reason = self._header["finish_reasons"][self._one("finish_reasons")]
        spans = self._one("spans")
        schema = ""
        if "json_schemas" in self._arrays:
            schema = self._header["json_schemas"][self._one("json_schemas")]
        return Completion(
            token_ids=self._take("token_ids", length),
            text="",
            logprobs=self._take("logprobs", length),
            finish_reason=reason,
            spans=tuple(zip(self._take("span_versions", spans), self._take("span_lengths", spans), strict=True)),
            json_schema=schema,
        )

    def _calls(self, completions: list[Completion]) -> tuple[AgentCall, ...]:
        """Return the calls of a program, none for a group of one prompt."""
        if "siblings" not in self._arrays:
            return ()
        count = self._one("siblings")
        siblings = self._take("sibling_numbers", count)
        prompts = [self._take("call_ids", length) for length in self._take("call_lengths", count)]
        calls: list[AgentCall] = []
        for number in range(count):
            calls.append(AgentCall(self._agent, "", prompts[number], completions[number], number + 1, siblings[number]))
        return tuple(calls)

    def _critic_sample(self, size: int) -> CriticSample:
        state = self._take("state_ids", self._one("state_lengths"))
        rewards = self._take("rewards", size)
        successors: list[tuple[Ids, ...]] = []
        lengths = [self._take("successor_lengths", count) for count in self._take("successors", size)]
        for of_completion in lengths:
            successors.append(tuple(self._take("successor_ids", length) for length in of_completion))
        return CriticSample(state, rewards, tuple(successors))
