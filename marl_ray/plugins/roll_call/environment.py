"""Roll call: each writer reads a row of letters that no other writer reads, and writes it.

docs/reference/environments/roll_call.md describes prompts and rewards. The bundled policy was trained on these exact
prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Self

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.text_environment import TextAttempt, TextEnvironment
from marl_ray.plugins.roll_call.options import RollCallConfig

if TYPE_CHECKING:
    from marl_ray.config import Config


@dataclass(frozen=True)
class WrittenRows(TextAttempt):
    """The rows of one joint action. `shares` are each writer's share of right cells."""

    shares: tuple[float, ...]


class RollCall(TextEnvironment[WrittenRows]):
    """Writers of the first N rows of a task. Tasks have the field `rows`, a tuple of rows of equal length."""

    def __init__(self, num_agents: int, options: RollCallConfig | None = None) -> None:
        super().__init__(num_agents)
        self._options = options or RollCallConfig()

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(config.num_agents, config.section(RollCallConfig))

    def check_task(self, task: Task) -> None:
        """Raise UserError if there are more writers than rows."""
        rows = len(task.fields["rows"])
        if rows < self.num_agents:
            raise UserError(f"task {task.id} has {rows} rows: set num_agents to at most {rows}")

    def roles(self, task: Task) -> list[str]:
        return [f"writer {number}" for number in range(1, self.num_agents + 1)]

    def first_prompts(self, task: Task) -> list[str]:
        texts = []
        for role, row in zip(self.roles(task), self._rows(task), strict=True):
            texts.append(f"{task.prompt} {role}: {' '.join(row)}\n")
        return texts

    def revisions(self, task: Task) -> list[str]:
        return ["Copy your row again."] * self.num_agents

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> WrittenRows:
        """Compare the words of each response with the letters of the row, one by one. Further words are ignored."""
        answers = []
        shares = []
        for response, row in zip(responses, self._rows(task), strict=True):
            words = response.lower().split()[: len(row)]
            right = sum(word == letter for word, letter in zip(words, row, strict=False))
            answers.append(" ".join(words))
            shares.append(right / len(row))
        return WrittenRows(tuple(answers), tuple(shares))

    def outcome(self, attempt: WrittenRows, report: None) -> Outcome:
        complete = float(min(attempt.shares) == 1.0)
        cells = fmean(attempt.shares)
        if self._options.team == "worst":
            cells = min(attempt.shares)
        rewards: tuple[float, ...] = ()
        if self._options.own:
            rewards = tuple(share + float(share == 1.0) for share in attempt.shares)
        metrics = {"cells_right": fmean(attempt.shares), "all_passed": complete}
        return Outcome(cells + complete, {"cells": cells, "complete": complete}, metrics, rewards=rewards)

    def facts(self, attempt: WrittenRows, outcome: Outcome, mode: str, agent: int) -> list[str]:
        if mode == "level_passed":
            return [f"right cells of all writers: {outcome.metrics['cells_right']:.0%}"]
        return [f"right cells of your row: {attempt.shares[agent]:.0%}"]

    def _rows(self, task: Task) -> tuple[str, ...]:
        rows: tuple[str, ...] = task.fields["rows"]
        return rows[: self.num_agents]
