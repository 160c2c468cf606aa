"""The words of the feedback modes: `RepairFacts` in, one short line per fact out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from marl_ray.core.text import pluralize
from marl_ray.environments.bug_fix.edits import Hunk
from marl_ray.environments.bug_fix.facts import RepairFacts
from marl_ray.environments.code_generation.feedback import cut, failure, syntax_words

MOST_HUNKS = 5
"""Of longer edits the first so many places are told."""


def level_feedback(facts: RepairFacts) -> list[str]:
    """Every level in detail, and what the other agents answered: the diagnosis, the changes."""
    lines = _diagnosis(facts)
    lines += [f"{role}: missing (no function that it may change)" for role in facts.missing]
    lines.append(f"syntax: {syntax_words(facts.syntax)}")
    if facts.syntax is not None:
        lines.append("tests: not run")
    else:
        lines += _tests(facts, _share)
        lines += [f"failed: {failure(test)}" for test, _ in facts.tests if test.status != "pass"]
    lines.append(f"edit: {_size(facts)}")
    lines += [f"changed: {_hunk(hunk)}" for hunk in facts.others[:MOST_HUNKS]]
    return lines


def level_passed(facts: RepairFacts) -> list[str]:
    """Every level as passed or not, without details."""
    lines = [f"patch: missing {', '.join(facts.missing)}" if facts.missing else "patch: OK"]
    lines.append(f"syntax: {'correct' if facts.syntax is None else 'incorrect'}")
    if facts.syntax is not None:
        lines.append("tests: not run")
    else:
        lines += _tests(facts, _part)
    if not facts.edit.size:
        lines.append("edit: nothing changed")
    elif facts.needed:
        lines.append(f"edit: {'as small as needed' if facts.small else 'larger than needed'}")
    if facts.diagnosis is not None:
        lines.append(f"diagnosis: {_named(facts) if facts.diagnosis.in_form else 'missing'}")
    return lines


def passed(facts: RepairFacts) -> list[str]:
    """One bit."""
    return ["All levels passed" if facts.all_passed else "Not all levels passed"]


def _diagnosis(facts: RepairFacts) -> list[str]:
    """To those who patch what the diagnosis is, to its author what became of it."""
    report = facts.diagnosis
    if report is None:
        return []
    if not report.in_form:
        return [f"diagnosis: missing ({report.problem})"]
    if facts.diagnoses:
        return [f"diagnosis: {_named(facts)}"]
    return [f"diagnosis: line {report.line} `{cut(facts.diagnosed_line.strip())}`: {cut(report.why)}"]


def _named(facts: RepairFacts) -> str:
    return "names a line that the patch changes" if facts.named else "names no line that the patch changes"


def _size(facts: RepairFacts) -> str:
    if not facts.edit.size:
        return "nothing changed"
    known = f", {facts.needed} needed" if facts.needed else ""
    return f"{pluralize(facts.edit.size, 'line')} changed{known}"


def _hunk(hunk: Hunk) -> str:
    """Where, what, and what it became; of several lines the first, and how many follow."""
    one = hunk.first == hunk.last
    if not hunk.old:
        place = f"beside line {hunk.first}" if one else f"between lines {hunk.first} and {hunk.last}"
        return f"{place} added {_lines(hunk.new)}"
    place = f"line {hunk.first}" if one else f"lines {hunk.first} to {hunk.last}"
    return f"{place} {_lines(hunk.old)} -> {_lines(hunk.new) if hunk.new else 'nothing'}"


def _lines(lines: Sequence[str]) -> str:
    more = f" and {pluralize(len(lines) - 1, 'line')} more" if len(lines) > 1 else ""
    return f"`{cut(lines[0].strip())}`{more}"


def _tests(facts: RepairFacts, counted_up: Callable[[Sequence[bool]], str]) -> list[str]:
    """What became of the tests that passed before, and of those that did not, as far as there are any."""
    kept = [f"tests that passed before: {counted_up(facts.kept)} still pass"] if facts.kept else []
    return kept + ([f"tests that failed before: {counted_up(facts.fixed)} pass now"] if facts.fixed else [])


def _share(results: Sequence[bool]) -> str:
    return f"{sum(results)} of {len(results)}"


def _part(results: Sequence[bool]) -> str:
    if all(results):
        return "all"
    return _share(results) if any(results) else "none"


WORDS: dict[str, Callable[[RepairFacts], list[str]]] = {
    "level_feedback": level_feedback,
    "level_passed": level_passed,
    "passed": passed,
}
"""By external mode."""
