"""Demonstrations for the hard set whose second turn copies or repairs, for `bundled:toy-revising-base`.

First turns are from `hard_demonstrations`. A revision uses only information in the prompt, which contains the
problem and the agent's previous function:

- After a passed test, every function is copied; without feedback, a function without errors.
- A function that contradicts the problem is written anew with its own decomposition. An entry point that solves the
  problem alone does not contradict it.
- After a failed test, a helper without errors is copied, and an entry point without errors changes its decomposition,
  if it has one: both agents may compute the same step. Only one of them adapts, else both change at once and still do
  not match.
"""

from __future__ import annotations

import random
from functools import cache

from tools.toy.demonstrations import PERFECT, Skill
from tools.toy.hard_demonstrations import FIRST_TURN, Attempt, attempt
from tools.toy.hard_families import Problem

__all__ = ["FIRST_TURN", "SECOND_TURN", "attempt", "second_attempt"]

SECOND_TURN = FIRST_TURN.better(0.9)


def second_attempt(
    problem: Problem, previous: Attempt, skill: Skill, rng: random.Random, *, sees_problem: bool, failing: bool | None
) -> Attempt:
    """Return a demonstration for the second turn. Raises ValueError if the prompt does not contain the problem."""
    if not sees_problem:
        raise ValueError("a revision compares its function with the problem, which the prompt does not contain")
    flawless = previous.text in flawless_texts(problem, previous)
    if failing is False or (flawless and not failing):
        return previous
    if not flawless:
        return attempt(problem, previous.role, skill, rng, previous.way)
    others = [way for way in problem.family.ways if way != previous.way]
    if previous.role != "main" or previous.way is None or not others:
        return previous
    return attempt(problem, previous.role, skill, rng, rng.choice(others))


def flawless_texts(problem: Problem, previous: Attempt) -> frozenset[str]:
    """Return the texts without errors that have the role and the decomposition of `previous`."""
    if previous.role != "single" and previous.way is None:
        return _solutions(problem) if previous.role == "main" else frozenset()
    return _flawless_texts(problem, previous.role, previous.way)


@cache
def _flawless_texts(problem: Problem, role: str, way: int | None) -> frozenset[str]:
    return frozenset(
        attempt(problem, role, PERFECT, random.Random(seed), way).text  # type: ignore[arg-type]
        for seed in range(12)  # an entry point has two wordings
    )


@cache
def _solutions(problem: Problem) -> frozenset[str]:
    """Return the entry points that solve the problem alone: without a helper, or ignoring its result."""
    head, last = f"def {problem.entry_point}({problem.argument}):", f"    return {problem.whole()}"
    return frozenset(("\n".join((head, last)), "\n".join((head, f"    aux({problem.argument})", last))))
