"""The prompts of solver and testers: first turn, instructions to revise, and the question to an expert."""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.environments.abilities import labelled_answers
from marl_ray.environments.code_generation.prompts import CODE_ONLY

TESTS_PER_WRITER = 3
"""Number of tests that each tester is asked for."""
FORM = """\
One test a line, in this form, with plain values, and nothing else:
assert {function}(...) == ..."""
WRITE = """\
Another agent has written `{function}` for this problem. Write three tests that show what is wrong with it, or that \
nothing is. Only tests that a right solution passes count. {form}"""
REVISE = """\
Another agent has revised `{function}`. Revise your three tests of it. Only tests that a right solution passes count. \
{form}"""

EXPERT = """\
A Python problem is solved by one programmer, and others write tests of the solution, which they have read.

Problem:
{problem}

{answers}

Suggest an edit for each of these: {names}. Reply with one JSON object and nothing else. Its keys are these names, its \
values are strings: a short suggestion, or the corrected text."""


def first_prompts(problem: str, function: str, testers: int) -> list[str]:
    """Return the first prompts, the solver's last."""
    write = WRITE.format(function=function, form=FORM.format(function=function))
    solve = f"Write the function `{function}`. {CODE_ONLY}"
    problem = problem.strip("\n")
    return [f"{problem}\n\n{instruction}\n" for instruction in [write] * testers + [solve]]


def revisions(function: str, testers: int) -> list[str]:
    """Return the closing instructions of later turns."""
    tests = REVISE.format(function=function, form=FORM.format(function=function))
    solve = f"Revise your function `{function}`. {CODE_ONLY}"
    return [tests] * testers + [solve]


def question(problem: str, roles: Sequence[str], answers: Sequence[str]) -> str:
    """Return the question to an expert about a joint action."""
    return EXPERT.format(
        problem=problem.strip(),
        answers=labelled_answers(roles, answers),
        names=", ".join(roles),
    )
