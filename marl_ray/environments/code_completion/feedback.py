"""The words of the feedback modes: a `ClassDiagnosis` in, one short line per fact out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from marl_ray.environments.code_completion.diagnosis import ClassDiagnosis, Failure
from marl_ray.environments.code_generation.feedback import cut, syntax_words

MOST_FAILURES = 8
"""A class has up to 40 tests, and a prompt has to hold the skeleton besides."""
TEST_CHARS = 200
"""What a test does is cut to its last so many characters: there it says what it expects."""


def level_feedback(diagnosis: ClassDiagnosis, agent: int) -> list[str]:
    """Every level in detail: the agent's own methods one by one, and failed tests that are about them first."""
    own = diagnosis.problems[agent]
    lines = [f"{name}: missing ({problem})" if problem else f"{name}: found" for name, problem in own.items()]
    if diagnosis.foreign[agent]:
        lines.append(f"not yours: {', '.join(diagnosis.foreign[agent])}")
    others = [name for name in diagnosis.missing if name not in own]
    if others:
        lines.append(f"missing from others: {', '.join(others)}")
    lines.append(f"syntax: {syntax_words(diagnosis.syntax)}")
    if diagnosis.syntax is not None:
        return [*lines, "tests: not run"]
    lines.append(f"tests: {diagnosis.passed} of {diagnosis.total} passed")
    failures = diagnosis.failures_for(agent)
    lines += [f"failed: {_failure(failure)}" for failure in failures[:MOST_FAILURES]]
    return lines + [f"failed: {len(failures) - MOST_FAILURES} more"] * (len(failures) > MOST_FAILURES)


def level_passed(diagnosis: ClassDiagnosis, agent: int) -> list[str]:
    """Every level as passed or not, without details; the same for all agents."""
    lines = [f"methods: {_but(diagnosis.missing, 'OK', 'missing ')}", f"overlap: {_but(diagnosis.overlap, 'none', '')}"]
    if diagnosis.syntax is not None:
        return [*lines, "syntax: incorrect", "tests: not run"]
    total, passed = diagnosis.total, diagnosis.passed
    some = "passed all" if passed == total else f"passed {passed} of {total}"
    return [*lines, "syntax: correct", f"tests: {some if passed else 'passed none'}"]


def passed(diagnosis: ClassDiagnosis, agent: int) -> list[str]:
    """One bit."""
    return ["All levels passed" if diagnosis.all_passed else "Not all levels passed"]


def _but(names: Sequence[str], none: str, some: str) -> str:
    return some + ", ".join(names) if names else none


def _failure(failure: Failure) -> str:
    test, line = failure.test, failure.text.line
    error = test.error_type or test.status
    if test.message:
        error = f"{error}: {test.message}"
    shown = line if len(line) <= TEST_CHARS else "..." + line[3 - TEST_CHARS :]
    return f"{shown} -> {cut(error)}"


WORDS: dict[str, Callable[[ClassDiagnosis, int], list[str]]] = {
    "level_feedback": level_feedback,
    "level_passed": level_passed,
    "passed": passed,
}
"""By external mode."""
