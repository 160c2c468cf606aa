"""The texts that solver and test writers read, first turn and the instruction to revise."""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.environments.code_generation.prompts import CODE_ONLY

WANTED = 3
"""Tests that a writer is asked for."""
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


def role_names(writers: int) -> list[str]:
    """`tests`, or `tests_1`, `tests_2`... of several writers; then `solution`."""
    names = [f"tests_{number}" for number in range(1, writers + 1)] if writers > 1 else ["tests"] * writers
    return [*names, "solution"]


def first_prompts(problem: str, function: str, writers: int) -> list[str]:
    """First-turn prompts, the solver's last."""
    instructions = [*[WRITE.format(function=function, form=FORM.format(function=function))] * writers]
    instructions.append(f"Write the function `{function}`. {CODE_ONLY}")
    return [f"{problem.strip(chr(10))}\n\n{instruction}\n" for instruction in instructions]


def revisions(function: str, writers: int) -> list[str]:
    """Later turns' closing instructions."""
    tests = REVISE.format(function=function, form=FORM.format(function=function))
    return [*[tests] * writers, f"Revise your function `{function}`. {CODE_ONLY}"]


def with_solution(solution: str, prompt: str) -> str:
    """A test writer's prompt, which is asked when there is a solution."""
    return f"Another agent's solution:\n{solution.strip() or '(empty)'}\n\n{prompt}"


def question(problem: str, roles: Sequence[str], answers: Sequence[str]) -> str:
    """What an expert is asked about a joint action."""
    said = "\n\n".join(f"{role}:\n{answer}" for role, answer in zip(roles, answers, strict=True))
    return EXPERT.format(problem=problem.strip(), answers=said, names=", ".join(roles))
