"""A filled grid: reading rows from responses, and the mark of each cell."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from marl_ray.environments.text_environment import TextAttempt
from marl_ray.plugins.grid.prompts import EMPTY

_ALONE = re.compile(r"(?<![^\W_])[^\W\d_](?![^\W_])")
"""A letter without letters or digits beside it."""


@dataclass(frozen=True)
class FilledGrid(TextAttempt):
    """The rows of all agents, in order, and the target. All rows have the target's width."""

    target: tuple[str, ...]
    rows: tuple[str, ...]

    @cached_property
    def marks(self) -> list[list[str]]:
        """The mark of each cell: `right`; `elsewhere` if the letter belongs in another cell that is not right (each
        such cell counts once, in reading order); else `wrong`."""
        missing: Counter[str] = Counter()
        for row, target_row in zip(self.rows, self.target, strict=True):
            for letter, wanted in zip(row, target_row, strict=True):
                if letter != wanted:
                    missing[wanted] += 1
        marks: list[list[str]] = []
        for row, target_row in zip(self.rows, self.target, strict=True):
            row_marks = []
            for letter, wanted in zip(row, target_row, strict=True):
                if letter == wanted:
                    mark = "right"
                elif missing[letter] > 0:
                    missing[letter] -= 1
                    mark = "elsewhere"
                else:
                    mark = "wrong"
                row_marks.append(mark)
            marks.append(row_marks)
        return marks


def read_rows(response: str, count: int, width: int, letters: str) -> list[str]:
    """Return the rows in a response: one per line that contains a letter of `letters` standing alone. Missing cells are
    empty; further letters and lines are ignored.

    Example:
        >>> read_rows("Sure:\\n a b, a b\\nc\\n", 2, 3, "abc")
        ['aba', 'c--']
    """
    rows: list[str] = []
    for line in response.splitlines():
        found = [letter for letter in _ALONE.findall(line.lower()) if letter in letters]
        if found and len(rows) < count:
            rows.append("".join(found[:width]).ljust(width, EMPTY))
    return rows + [EMPTY * width] * (count - len(rows))
