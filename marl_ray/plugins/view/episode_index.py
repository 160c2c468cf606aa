"""Offsets and light facts of the episodes in episodes.jsonl. The text of an episode is read when it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_ray.core.files import DISK_ERRORS
from marl_ray.telemetry.recorded_episode import followed_turns
from marl_ray.telemetry.sinks import is_evaluation, parse_row

TASK_CHARS = 400
"""Characters of the first prompt in which words of a filter are found."""


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """Facts of one episode in the table.

    offset, length: the place of its line, in bytes.
    task_text: the beginning of the first prompt.
    rewards: by turn.
    solved: by turn, whether all tests passed; None without tests.
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
        self.path = path
        self.episodes: list[EpisodeFacts] = []
        self._end = 0
        """End of the last complete line that was read."""
        self._inode = 0

    def read_new(self) -> bool:
        """Add the episodes of new lines. Return True if the file was rewritten, so all episodes are read again."""
        try:
            with self.path.open("rb") as file:
                return self._read(file)
        except FileNotFoundError:
            return False  # before the first step
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                return False  # a network file system that is away for a moment
            raise

    def _read(self, file: Any) -> bool:
        status = self.path.stat()
        is_rewritten = bool(self._inode) and (status.st_ino != self._inode or status.st_size < self._end)
        if is_rewritten:
            self.episodes = []
            self._end = 0
        self._inode = status.st_ino
        file.seek(self._end)
        for line in file:
            if not line.endswith(b"\n"):
                break  # the run is writing it
            facts = _facts(line, self._end)
            if facts is not None:
                self.episodes.append(facts)
            self._end += len(line)
        return is_rewritten

    def record(self, facts: EpisodeFacts) -> Mapping[str, Any] | None:
        """Return the record of an episode; None if the file has changed."""
        return parse_row(self._line(facts))

    def contains(self, facts: EpisodeFacts, text: str) -> bool:
        """Return whether a prompt, an answer or a verdict of the episode contains a text, in upper or lower case."""
        # Line ends and quotes are escaped in the file, and words have neither.
        return text.lower() in self._line(facts).decode(errors="replace").lower()

    def _line(self, facts: EpisodeFacts) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(facts.offset)
                return file.read(facts.length)
        except OSError:
            return b""


def _facts(line: bytes, offset: int) -> EpisodeFacts | None:
    """Return the facts of a line; None if it is no episode."""
    record = parse_row(line)
    if record is None:
        return None
    try:
        turns = list(followed_turns(record))
        rewards = tuple(turn.reward for turn in turns)
        solved = []
        for turn in turns:
            tests = turn.tests
            solved.append(None if tests is None else tests[0] == tests[1])
        text = turns[0].prompts[0][:TASK_CHARS] if turns else ""
        return EpisodeFacts(
            offset, len(line), record["step"], is_evaluation(record), str(record["task"]), text, rewards, tuple(solved)
        )
    except (KeyError, IndexError, TypeError, ValueError):
        return None  # of a version to come, or damaged
