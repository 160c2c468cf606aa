"""The filter of the table: words, each of which an episode must satisfy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from marl_ray.core.errors import UserError
from marl_ray.plugins.view.episode_index import EpisodeFacts, EpisodeIndex

KINDS = {"train": False, "held-out": True}
SOLVED = {"solved": True, "unsolved": False}
RANGES = ("step", "reward")


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Conditions on an episode.

    words: texts in the task or the beginning of its prompt.
    texts: texts anywhere in the episode.
    held_out, solved: None for both. `solved` is about the last turn.
    ranges: lowest and highest value, by `step` and `reward`.
    """

    words: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    held_out: bool | None = None
    solved: bool | None = None
    ranges: tuple[tuple[str, float, float], ...] = ()

    @classmethod
    def parse(cls, line: str) -> EpisodeFilter:
        """Return the filter of a line, such as `held-out unsolved step=10.. aux`. Raises UserError."""
        words = []
        texts = []
        ranges = []
        held_out = None
        solved = None
        for word in line.split():
            name, equals, value = word.partition("=")
            if word in KINDS:
                held_out = KINDS[word]
            elif word in SOLVED:
                solved = SOLVED[word]
            elif equals and name in RANGES:
                low, high = _range(word, value)
                ranges.append((name, low, high))
            elif equals and name == "text":
                texts.append(value)
            else:
                words.append(word.lower())
        return cls(tuple(words), tuple(texts), held_out, solved, tuple(ranges))

    def matches(self, facts: EpisodeFacts, index: EpisodeIndex) -> bool:
        """Return whether an episode satisfies all conditions."""
        if self.held_out is not None and facts.held_out != self.held_out:
            return False
        if self.solved is not None and self.solved != bool(facts.solved and facts.solved[-1]):
            return False
        for name, low, high in self.ranges:
            if not low <= getattr(facts, name) <= high:
                return False
        place = f"{facts.task} {facts.task_text}".lower()
        if not all(word in place for word in self.words):
            return False
        # Last, because it reads the episode.
        return all(index.contains(facts, text) for text in self.texts)


def _range(word: str, value: str) -> tuple[float, float]:
    """Return the bounds of `3..5`, `3..`, `..5` or `3`. Raises UserError."""
    first, dots, last = value.partition("..")
    try:
        low = float(first) if first else -math.inf
        if not dots:
            return float(first), float(first)
        return low, float(last) if last else math.inf
    except ValueError:
        raise UserError(f"{word} is no range: write step=3..5, step=3.. or step=3") from None
