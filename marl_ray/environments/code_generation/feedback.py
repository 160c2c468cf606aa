"""The words of the feedback modes: a `Diagnosis` in, one short line per fact out.

Like the prompts, these texts are what a bundled policy was trained on: a golden test holds them.
"""

from __future__ import annotations

from collections.abc import Callable

from marl_ray.environments.code_generation.diagnosis import Diagnosis, SyntaxProblem
from marl_ray.sandbox import TestResult

LINE_CHARS = 100
"""A test's source, and its error with message, are each cut to this."""


def level_feedback(diagnosis: Diagnosis, agent: int) -> list[str]:
    """Every level in detail; main (the last agent) also hears how it uses the helpers."""
    lines = [f"{status.name}: {_status(status.problem)}" for status in diagnosis.functions]
    lines.append(f"syntax: {syntax_words(diagnosis.syntax)}")
    if diagnosis.syntax is not None:
        lines.append("tests: not run")
    else:
        lines.append(f"tests: {diagnosis.passed} of {len(diagnosis.tests)} passed")
        lines += [f"failed: {failure(test)}" for test in diagnosis.tests if test.status != "pass"]
    if agent == len(diagnosis.functions) - 1:
        lines += _aux_use(diagnosis)
    return lines


def level_passed(diagnosis: Diagnosis, agent: int) -> list[str]:
    """Every level as passed or not, without details; the same for all agents."""
    missing = [status.name for status in diagnosis.functions if not status.found]
    lines = [f"implementation: {'missing ' + ', '.join(missing) if missing else 'OK'}"]
    lines.append(f"syntax: {'correct' if diagnosis.syntax is None else 'incorrect'}")
    total, passed = len(diagnosis.tests), diagnosis.passed
    if diagnosis.syntax is not None:
        lines.append("tests: not run")
    elif passed == 0:
        lines.append("tests: passed none")
    else:
        lines.append("tests: passed all" if passed == total else f"tests: passed {passed} of {total}")
    return lines + _aux_use(diagnosis)


def passed(diagnosis: Diagnosis, agent: int) -> list[str]:
    """One bit."""
    return ["All levels passed" if diagnosis.all_passed else "Not all levels passed"]


def _status(problem: str) -> str:
    return f"missing ({problem})" if problem else "found"


def syntax_words(error: SyntaxProblem | None) -> str:
    """Whether the joint program compiles, and where it does not."""
    if error is None:
        return "OK"
    where = f" in {error.function}" if error.function else ""
    line = "" if error.line is None else f" line {error.line}"
    column = "" if error.column is None else f" column {error.column}"
    return f"error{where}{line}{column}: {cut(error.message)}"


def failure(test: TestResult) -> str:
    """A test that did not pass, and why."""
    error = test.error_type or test.status
    if test.message:
        error = f"{error}: {test.message}"
    return f"{cut(test.source)} -> {cut(error)}"


def _aux_use(diagnosis: Diagnosis) -> list[str]:
    """How main uses the helpers; nothing to say without helpers or without main."""
    if not diagnosis.helpers or not diagnosis.main.found:
        return []
    faults = [f"{name} not called" for name in diagnosis.not_called]
    if diagnosis.thin_wrapper:
        faults.append("thin wrapper")
    if diagnosis.aux_misused:
        faults.append("result thrown away")
    return [f"aux use: {', '.join(faults) if faults else 'OK'}"]


def cut(text: str) -> str:
    """On one line, at most LINE_CHARS characters."""
    text = " ".join(text.split())
    return text if len(text) <= LINE_CHARS else text[: LINE_CHARS - 3] + "..."


WORDS: dict[str, Callable[[Diagnosis, int], list[str]]] = {
    "level_feedback": level_feedback,
    "level_passed": level_passed,
    "passed": passed,
}
"""By external mode."""
