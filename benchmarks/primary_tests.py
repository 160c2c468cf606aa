"""The first announced test of five questions, corrected for all five: `python -m benchmarks.primary_tests`.

Each results page has its own family of tests. This table takes the first one of each of five pages, from the committed
rows: the exact sign-flip test over seeds, and Holm's correction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.learning import drops, grid_studies, second_turn_study
from benchmarks.learning.__main__ import RESULTS as LEARNING
from benchmarks.learning.__main__ import current
from benchmarks.learning.catalogue import FAMILIES, STUDIES
from benchmarks.learning.primary import Comparison
from benchmarks.markdown import markdown
from benchmarks.roll_call import report as roll_call
from benchmarks.roll_call.__main__ import RESULTS as ROLL_CALLS
from benchmarks.roll_call.arms import FIRST, ROLL_CALL
from benchmarks.tags import clock
from benchmarks.tags.__main__ import RESULTS as TAGS
from marl_ray.core.statistics import holm, sign_flip, student_interval

Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a page, its first announced comparison, and the lines that it compares."""

    question: str
    comparison: Comparison
    lines: Callable[[], Lines]


def _of_study(name: str) -> Lines:
    return current(STUDIES[name], LEARNING)


QUESTIONS = (
    Question(
        "[credit over agents](credit_over_agents.md): log2 of joint samples",
        roll_call.shared_less_difference(8),
        lambda: roll_call.comparable(current(ROLL_CALL, ROLL_CALLS), FIRST),
    ),
    Question(
        "[clock](clock.md): words of ten",
        clock.COMPARISONS[0],
        lambda: clock.comparable(current(clock.CLOCK, TAGS)),
    ),
    Question(
        "[messages](undemonstrated.md): reward of 2",
        FAMILIES["grid-telling"][0],
        lambda: _of_study("grid-telling"),
    ),
    Question(
        "[second turn](second_turn.md): share that passes",
        second_turn_study.COMPARISONS[0],
        lambda: _of_study("toy-second-turn"),
    ),
    Question(
        "[falls](falls.md): share that falls",
        grid_studies.FALL_COMPARISONS[0],
        lambda: drops.comparable(_of_study("grid-falls")),
    ),
)


def table() -> str:
    """Return the tests as a Markdown table."""
    differences = [question.comparison.differences(question.lines()) for question in QUESTIONS]
    p_values = [sign_flip(values) for values in differences]
    head = ["page and unit", "first announced test", "seeds", "difference", "p, sign flip", "p, corrected for five"]
    rows = [head]
    for question, values, p_value, corrected in zip(QUESTIONS, differences, p_values, holm(p_values), strict=True):
        mean, half = student_interval(values)
        cells = [question.question, question.comparison.title, str(len(values)), f"{mean:+.3f} ± {half:.3f}"]
        rows.append([*cells, f"{p_value:.3f}", f"{corrected:.3f}"])
    return markdown(rows)


if __name__ == "__main__":
    print(table())
