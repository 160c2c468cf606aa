"""The episodes of a run in episodes.jsonl: a light list of all, and single records from their place in the file.

A reward of an episode is the mean over the joint actions of its last turn. An episode without a node has none.
"""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_ray.core.errors import UserError
from marl_ray.telemetry.episode_records import EpisodeRecord, is_solved
from marl_ray.telemetry.growing_rows import GrowingRows, PlacedRow

Action = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ListedEpisode:
    """A line of the file. `kind` is train or eval; `solved` has, per turn, the share of joint actions that solved the
    task, None where the environment reports no verdict; `offset` and `length` are in bytes."""

    id: str
    task: str
    kind: str
    step: int
    reward: float | None
    solved: list[float | None]
    offset: int
    length: int

    def data(self) -> dict[str, Any]:
        """Return the entry of a list of episodes, as plain data."""
        return {
            "id": self.id,
            "task": self.task,
            "kind": self.kind,
            "step": self.step,
            "reward": self.reward,
            "solved": self.solved,
        }


class EpisodeFile:
    """The list of a run's episodes, which grows with the file."""

    def __init__(self, path: Path) -> None:
        self._rows = GrowingRows(path)
        self._clear()

    def _clear(self) -> None:
        self.episodes: list[ListedEpisode] = []
        self._names: Counter[tuple[str, int, str]] = Counter()

    def update(self) -> None:
        """Read the lines that are new since the last call. Raises UserError for a damaged line."""
        for placed in self._rows.read_new(self._clear):
            if placed.row is None:
                raise UserError(f"{self._rows.path} is damaged in line {len(self.episodes) + 1}: delete that line")
            self.episodes.append(self._listed(placed, placed.row))

    def record(self, episode: ListedEpisode) -> EpisodeRecord:
        """Return the record of a listed episode. Raises UserError if the file was rewritten since `update`."""
        record = self._rows.row(episode.offset, episode.length)
        if record is None:
            raise UserError(f"{self._rows.path} has changed: repeat the command")
        return record

    def find(self, episode_id: str) -> ListedEpisode | None:
        """Return the episode with this id, if there is one."""
        for episode in self.episodes:
            if episode.id == episode_id:
                return episode
        return None

    def containing(self, text: str) -> list[str]:
        """Return the ids of the episodes with an answer that contains a text, in any case."""
        found = []
        for episode in self.episodes:
            if any(text.lower() in answer.lower() for answer in answers(self.record(episode))):
                found.append(episode.id)
        return found

    def _listed(self, placed: PlacedRow, record: EpisodeRecord) -> ListedEpisode:
        name = (record.get("kind", "train"), record["step"], record["task"])
        self._names[name] += 1
        by_turn = actions_by_turn(record)
        reward = None
        if by_turn:
            reward = statistics.fmean(action["reward"] for action in by_turn[-1])
        return ListedEpisode(
            id=episode_id(*name, self._names[name]),
            task=record["task"],
            kind=name[0],
            step=record["step"],
            reward=reward,
            solved=[solved_share(actions) for actions in by_turn],
            offset=placed.offset,
            length=placed.length,
        )


def episode_id(kind: str, step: int, task: str, occurrence: int = 1) -> str:
    """Return the id of an episode, which later pages of the run keep. `occurrence` counts the episodes of equal kind,
    step and task."""
    name = repr((kind, step, task))
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return digest if occurrence == 1 else f"{digest}-{occurrence}"


def actions_by_turn(record: EpisodeRecord) -> list[list[Action]]:
    """Return the joint actions of all nodes of each turn that the episode reached."""
    by_turn: dict[int, list[Action]] = {}
    for node in record["nodes"]:
        by_turn.setdefault(node["turn"], []).extend(node["joint_actions"])
    return [by_turn[turn] for turn in sorted(by_turn)]


def solved_share(actions: list[Action]) -> float | None:
    """Return the share of joint actions that solved the task; None if the environment tells of none."""
    verdicts = []
    for action in actions:
        solved = is_solved(action)
        if solved is not None:
            verdicts.append(solved)
    return statistics.fmean(verdicts) if verdicts else None


def answers(record: EpisodeRecord) -> list[str]:
    """Return the texts of all answers of an episode."""
    texts = []
    for node in record["nodes"]:
        for of_agent in node["responses"]:
            texts += of_agent
    return texts
