"""The diagnosis: one line of the buggy program and the reason, in a fixed short form.

    line: 7
    why: the loop runs over the input instead of the counts

Case does not matter, nor text around these two lines. Of several lines named the first counts, so that naming many is
worth nothing. A response is untrusted text; nothing here raises on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from marl_ray.environments.code_generation.extraction import clean

LINE = re.compile(r"(?im)^[ \t]*line[ \t]*:[ \t]*(\d{1,9})\b")
WHY = re.compile(r"(?im)^[ \t]*why[ \t]*:[ \t]*(\S.*)$")


@dataclass(frozen=True, slots=True)
class BugReport:
    """A diagnosis as it was read: a line of the program, from 1, and a reason. `problem` says why it does not count;
    empty: it does."""

    line: int = 0
    why: str = ""
    problem: str = ""

    @property
    def in_form(self) -> bool:
        return not self.problem


def bug_report(response: str, lines: int) -> BugReport:
    """The diagnosis in a response, of a program of so many lines."""
    text = clean(response)
    named, said = LINE.search(text), WHY.search(text)
    line, why = int(named.group(1)) if named else 0, " ".join(said.group(1).split()) if said else ""
    if not text:
        problem = "empty answer"
    elif named is None:
        problem = "names no line"
    elif not 1 <= line <= lines:
        problem = f"there is no line {line}"
    else:
        problem = "" if why else "says no why"
    return BugReport(line, why, problem)
