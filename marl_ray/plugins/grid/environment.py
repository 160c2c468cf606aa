"""Letter grids: agents fill rows of a grid that should equal a target over several turns.

docs/reference/environments/grid.md describes prompts, rewards and feedback. In `LetterGrid` no agent sees the target,
and feedback marks every cell. In `PrivateGrid` each agent knows the rows of another agent, and feedback only shows the
grid, so agents have to tell each other through their answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.text_environment import TextEnvironment
from marl_ray.plugins.grid import prompts
from marl_ray.plugins.grid.attempt import FilledGrid, read_rows


class LetterGrid(TextEnvironment[FilledGrid]):
    """A grid with a secret target. Tasks have the fields `target`, a tuple of rows of equal length, and `letters`, the
    letters that rows may contain. Rows are divided equally between the agents, in order."""

    def check_task(self, task: Task) -> None:
        """Raise UserError unless the rows can be divided equally."""
        if len(task.fields["target"]) % self.num_agents:
            rows = len(task.fields["target"])
            raise UserError(f"task {task.id}: {rows} rows cannot be divided equally between {self.num_agents} agents")

    def roles(self, task: Task) -> list[str]:
        return list(map(prompts.role, self._rows(task)))

    def first_prompts(self, task: Task) -> list[str]:
        return [prompts.first_prompt(task.prompt, rows, {}) for rows in self._rows(task)]

    def revisions(self, task: Task) -> list[str]:
        return list(map(prompts.revision, self._rows(task)))

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> FilledGrid:
        target = task.fields["target"]
        width = len(target[0])
        answers = []
        filled: list[str] = []
        for response, numbers in zip(responses, self._rows(task), strict=True):
            rows = read_rows(response, len(numbers), width, task.fields["letters"])
            answers.append("\n".join(map(prompts.spaced, rows)))
            filled += rows
        return FilledGrid(tuple(answers), target, tuple(filled))

    def outcome(self, attempt: FilledGrid, report: None) -> Outcome:
        letters = "".join(attempt.rows)
        right = _count_right(attempt) / len(letters)
        complete = float(attempt.rows == attempt.target)
        levels = {"cells": right, "complete": complete}
        filled = len(letters) - letters.count(prompts.EMPTY)
        metrics = {
            "cells_right": right,
            "cells_filled": filled / len(letters),
            "all_passed": complete,
        }
        return Outcome(math.fsum(levels.values()), levels, metrics)

    def facts(self, attempt: FilledGrid, outcome: Outcome, mode: str, agent: int) -> list[str]:
        if mode == "level_passed":
            return [f"right: {_count_right(attempt)} of {len(''.join(attempt.rows))} letters"]
        return self._details(attempt)

    def _details(self, attempt: FilledGrid) -> list[str]:
        """Return one line per row with the mark of each letter."""
        lines = []
        for number, (row, marks) in enumerate(zip(attempt.rows, attempt.marks, strict=True), 1):
            cells = map(" ".join, zip(row, marks, strict=True))
            lines.append(f"row {number}: {', '.join(cells)}")
        return lines

    def _rows(self, task: Task) -> list[range]:
        """Return the rows of each agent, as numbers from 1."""
        size = len(task.fields["target"]) // self.num_agents
        starts = range(1, self.num_agents * size + 1, size)
        return [range(start, start + size) for start in starts]


class PrivateGrid(LetterGrid):
    """A grid of which each agent knows the rows of the next agent, and the last agent the rows of the first. Feedback
    shows the grid without marks. A single agent fills the whole grid and knows its first half."""

    modes = ("level_feedback",)

    def check_task(self, task: Task) -> None:
        """Raise UserError unless the rows can be divided equally, for a single agent into two halves."""
        super().check_task(task)
        if self.num_agents == 1 and len(task.fields["target"]) % 2:
            raise UserError(f"task {task.id}: a single agent knows half of the rows, of which there is an odd number")

    def first_prompts(self, task: Task) -> list[str]:
        target = task.fields["target"]
        rows = self._rows(task)
        if self.num_agents > 1:
            known = [*rows[1:], rows[0]]  # of the next agent
        else:
            known = [range(1, len(target) // 2 + 1)]
        texts = []
        for own_rows, known_rows in zip(rows, known, strict=True):
            facts = {number: target[number - 1] for number in known_rows}
            texts.append(prompts.first_prompt(task.prompt, own_rows, facts))
        return texts

    def _details(self, attempt: FilledGrid) -> list[str]:
        lines = []
        for number, row in enumerate(attempt.rows, 1):
            lines.append(f"row {number}: {prompts.spaced(row)}")
        return lines


def _count_right(attempt: FilledGrid) -> int:
    return sum(marks.count("right") for marks in attempt.marks)


def single_agent_bound(rows: int, width: int, letters: int) -> float:
    """Return the largest expected reward of a single agent on a `PrivateGrid` with uniform random targets.

    The agent writes the half that it knows, and can only guess the letters of the other half. Feedback tells nothing
    new, so the bound holds for every turn.

    Example:
        >>> single_agent_bound(2, 3, 3)  # half of the cells, a third of the others, and 1 / 27 for a complete grid
        0.7037037037037037
    """
    cells = rows * width
    guessed = (rows - rows // 2) * width
    right = cells - guessed + guessed / letters
    return right / cells + letters**-guessed
