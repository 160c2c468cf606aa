"""Offsets and light facts of the episodes in episodes.jsonl. The text of an episode is read when it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_ray.telemetry.episode_records import is_solved
from marl_ray.telemetry.growing_rows import GrowingRows, PlacedRow
from marl_ray.telemetry.recorded_episode import followed_turns
from marl_ray.telemetry.sinks import is_evaluation

TASK_CHARS = 400
"""Characters of the first prompt in which words of a filter are found."""


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """Facts of one episode in the table.

    offset, length: the place of its line, in bytes.
    task_text: the beginning of the first prompt.
    rewards: by turn.
    solved: by turn, whether the task was solved; None if the environment does not tell.
    """

    offset: int
    length: int
    step: int
    held_out: bool
    task: str
    task_text: str
    rewards: tuple[float, ...]
    solved: tuple[bool | None, ...]

    @property
    def reward(self) -> float:
        """The reward of the last turn; -infinity for an episode without a complete turn."""
        return self.rewards[-1] if self.rewards else float("-inf")


class EpisodeIndex:
    """The episodes of a file, in its order. The file may be missing, grow, and be rewritten by a resumed run."""

    def __init__(self, path: Path) -> None:
        self._rows = GrowingRows(path)
        self._clear()

    def _clear(self) -> None:
        self.episodes: list[EpisodeFacts] = []

    def read_new(self) -> bool:
        """Add the episodes of new lines. Return True if the table has changed."""
        before = self.episodes
        count = len(before)
        for placed in self._rows.read_new(self._clear):
            facts = _facts(placed)
            if facts is not None:
                self.episodes.append(facts)
        return self.episodes is not before or len(self.episodes) != count

    def record(self, facts: EpisodeFacts) -> Mapping[str, Any] | None:
        """Return the record of an episode; None if the file has changed."""
        return self._rows.row(facts.offset, facts.length)

    def contains(self, facts: EpisodeFacts, text: str) -> bool:
        """Return whether a prompt, an answer or a verdict of the episode contains a text, in upper or lower case."""
        # Line ends and quotes are escaped in the file, and words have neither.
        line = self._rows.line(facts.offset, facts.length)
        return text.lower() in line.decode(errors="replace").lower()


def _facts(placed: PlacedRow) -> EpisodeFacts | None:
    """Return the facts of a line; None if it is no episode."""
    record = placed.row
    if record is None:
        return None
    try:
        turns = list(followed_turns(record))
        rewards = tuple(turn.reward for turn in turns)
        solved = [is_solved(turn.action) for turn in turns]
        text = turns[0].prompts[0][:TASK_CHARS] if turns else ""
        return EpisodeFacts(
            offset=placed.offset,
            length=placed.length,
            step=record["step"],
            held_out=is_evaluation(record),
            task=str(record["task"]),
            task_text=text,
            rewards=rewards,
            solved=tuple(solved),
        )
    except (KeyError, IndexError, TypeError, ValueError):
        return None  # of a version to come, or damaged
