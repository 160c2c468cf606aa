"""Noisy demonstrations for the training of the base policy.

A base policy that is always right has nothing to learn, and one that is never right gets no signal from a group. A
demonstration is therefore usually right in each respect (name, constant, cooperation, return, syntax), with independent
errors. Every level of the reward then occurs within a group of eight.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from tools.toy.families import CONSTANTS, Problem

Role = Literal["aux", "main", "single"]

WRONG_NAMES = ("helper", "solution", "func", "compute")


@dataclass(frozen=True, slots=True)
class Skill:
    """Probabilities of being right in each respect."""

    name: float = 0.92
    constant: float = 0.75
    structure: float = 0.68
    """aux computes only its part; main applies its own part to the helper's value."""
    returns: float = 0.90
    syntax: float = 0.93

    def better(self, share: float) -> Skill:
        """Return the skill without `share` of the errors."""
        chances = {f: getattr(self, f) for f in self.__dataclass_fields__}
        return replace(self, **{f: 1 - (1 - chance) * (1 - share) for f, chance in chances.items()})


FIRST_TURN = Skill()
SECOND_TURN = FIRST_TURN.better(0.4)
PERFECT = Skill(1.0, 1.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A response and its constants, which its author sees again in the next turn.

    `a` and `b` are the constants in the code, None if the code does not contain the constant.
    """

    role: Role
    text: str
    a: int | None
    b: int | None


def other_constant(constant: int, rng: random.Random) -> int:
    """Return a constant other than `constant`."""
    return rng.choice([c for c in CONSTANTS if c != constant])


def attempt(problem: Problem, role: Role, skill: Skill, rng: random.Random) -> Attempt:
    """Return a demonstration for `problem`, whose constants are the constants that the agent assumes."""

    def right(chance: float) -> bool:
        return rng.random() < chance

    a = problem.a if right(skill.constant) else other_constant(problem.a, rng)
    b = problem.b if right(skill.constant) else other_constant(problem.b, rng)
    cooperates = right(skill.structure)
    before: list[str] = []
    v = problem.argument
    has_a, has_b = True, True
    match role:
        case "aux":
            value = problem.part(a) if cooperates else problem.whole(a, b)
            has_b = not cooperates
        case "single":
            value = problem.whole(a, b)
        case "main" if cooperates:
            has_a = False
            if right(0.8):
                value = problem.rest(f"aux({v})", b)
            else:
                before.append(f"part = aux({v})")
                value = problem.rest("part", b)
        case "main":
            kind = rng.choice(("alone", "alone", "thin", "thin", "ignores"))
            if kind == "thin":
                has_a = has_b = False
                value = f"aux({v})"
            else:
                value = problem.whole(a, b)
            if kind == "ignores":
                before.append(f"aux({v})")
    last = f"return {value}" if right(skill.returns) else rng.choice((f"print({value})", f"result = {value}"))
    name = "aux" if role == "aux" else problem.entry_point
    if not right(skill.name):
        name = rng.choice(WRONG_NAMES)
    lines = [f"def {name}({v}):", *(f"    {line}" for line in (*before, last))]
    if not right(skill.syntax):
        lines = misspell(lines, rng)
    return Attempt(role, "\n".join(lines), a if has_a else None, b if has_b else None)


def misspell(lines: list[str], rng: random.Random) -> list[str]:
    """Return the lines with one error that keeps the function from parsing."""
    first, *middle, last = lines
    match rng.choice(("colon", "bracket", "operator")):
        case "colon":
            first = first.removesuffix(":")
        case "bracket":
            first = first.replace(")", "")
        case _:
            last += " +"
    return [first, *middle, last]


def second_attempt(
    problem: Problem, previous: Attempt, skill: Skill, rng: random.Random, *, sees_problem: bool, failing: bool | None
) -> Attempt:
    """Return a demonstration for the second turn, which uses only information in the prompt.

    If the prompt does not contain the problem, the constants come from the agent's own previous function, right or
    wrong. After a failed test (`failing`) the agent sometimes replaces them, and it guesses missing constants.
    """
    believed = problem
    if not sees_problem:
        doubts = bool(failing) and rng.random() < 0.3

        def believe(constant: int | None) -> int:
            return rng.choice(CONSTANTS) if constant is None or doubts else constant

        believed = replace(problem, a=believe(previous.a), b=believe(previous.b))
    return attempt(believed, previous.role, skill, rng)
