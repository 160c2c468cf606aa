"""The words of the feedback modes: what is known of the solution, as in code generation, and of the written tests.

What is told of the problem's own tests is in `external.sandbox_slice`. Written tests are told in full, but of one that
is not valid only that, and not what the reference gives, for which it could be used as a question.
"""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.environments.code_generation.diagnosis import Diagnosis
from marl_ray.environments.code_generation.feedback import WORDS, cut, failure
from marl_ray.environments.solver_tester.findings import WrittenTest


def words(mode: str, diagnosis: Diagnosis, written: Sequence[Sequence[WrittenTest]], agent: int) -> list[str]:
    """What an agent is told; the agents of `written` come before the solver."""
    if mode == "passed":
        every = [test for tests in written for test in tests]
        good = all(written) and all(test.valid and not test.finds for test in every)
        return ["All levels passed" if diagnosis.all_passed and good else "Not all levels passed"]
    lines = WORDS[mode](diagnosis, 0)
    if diagnosis.syntax is not None:
        return lines
    own = [written[agent]] if agent < len(written) else written
    return lines + [line for tests in own for line in (_detailed(tests) if mode == "level_feedback" else _brief(tests))]


def _brief(tests: Sequence[WrittenTest]) -> list[str]:
    valid = sum(test.valid for test in tests)
    return [f"written tests: {valid} of {len(tests)} valid, {sum(test.finds for test in tests)} failed"]


def _detailed(tests: Sequence[WrittenTest]) -> list[str]:
    found = [f"failed: {failure(test.solution)}" for test in tests if test.finds]
    return [*_brief(tests), *found, *(f"not valid: {cut(test.source)}" for test in tests if not test.valid)]


MODES = tuple(WORDS)
"""The external modes that there are words for."""
