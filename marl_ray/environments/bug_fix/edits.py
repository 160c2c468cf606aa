"""Which lines of a text another text changes, and how many these are.

Lines are compared as they are, but for blank lines and for what is blank at a line's end. That is the diff people look
at, so a patch that formats anew, or leaves comments out, is a larger edit than one that does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher


@dataclass(frozen=True, slots=True)
class Hunk:
    """One place of an edit: the lines `old` of the old text became the lines `new`.

    `first` and `last` are numbers of lines of the old text, from 1: of the first and the last line of `old`; where
    lines are only added, of their neighbours.
    """

    first: int
    last: int
    old: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def size(self) -> int:
        """Lines changed. A line that became another counts once."""
        return max(len(self.old), len(self.new))


@dataclass(frozen=True, slots=True)
class Edit:
    """All places at which two texts differ, in their order.

    Example:
        >>> edit("a = 1\\nb = 2", "a = 1\\nb = 3").size
        1
    """

    hunks: tuple[Hunk, ...]

    @property
    def size(self) -> int:
        """Lines changed."""
        return sum(hunk.size for hunk in self.hunks)

    def changes(self, line: int) -> bool:
        """Whether it changes this line of the old text, or adds lines beside it."""
        return any(hunk.first <= line <= hunk.last for hunk in self.hunks)


def edit(old: str, new: str) -> Edit:
    """The edit that makes `new` of `old`."""
    before = [(number, line.rstrip()) for number, line in enumerate(old.split("\n"), 1) if line.strip()]
    numbers, lines = [number for number, _ in before], [line for _, line in before]
    after = [line.rstrip() for line in new.split("\n") if line.strip()]
    hunks = []
    for kind, i, end, j, stop in SequenceMatcher(None, lines, after, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        around = numbers[i:end] or numbers[max(0, i - 1) : i + 1] or [1]
        hunks.append(Hunk(around[0], around[-1], tuple(lines[i:end]), tuple(after[j:stop])))
    return Edit(tuple(hunks))
