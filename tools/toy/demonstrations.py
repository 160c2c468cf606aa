"""Noisy demonstrations: what the base policy is trained to imitate.

A base that is always right has nothing to learn, one that never is gets no signal from a group. So a demonstrator
is right in each respect (name, constant, cooperation, returning, spelling) most of the time, and its slips are drawn
independently of each other and of the problem. Then every level of the reward occurs within a group of eight,
and reinforcement only has to make firm what the base does more often than not.
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
    """Chances of being right, respect by respect."""

    name: float = 0.92
    constant: float = 0.75
    structure: float = 0.68
    """aux computes its part and no more; main uses the helper's value and adds its own part to it."""
    returns: float = 0.90
    syntax: float = 0.93

    def better(self, share: float) -> Skill:
        """The same demonstrator with `share` of its slips avoided."""
        chances = {f: getattr(self, f) for f in self.__dataclass_fields__}
        return replace(self, **{f: 1 - (1 - chance) * (1 - share) for f, chance in chances.items()})


FIRST_TURN = Skill()
SECOND_TURN = FIRST_TURN.better(0.4)
PERFECT = Skill(1.0, 1.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A response and what its author had in mind, which is what the author can see of it a turn later.

    `a` and `b` are the constants that stand in the code, None if that constant is not in it.
    """

    role: Role
    text: str
    a: int | None
    b: int | None


def other_constant(constant: int, rng: random.Random) -> int:
    """A constant that is not `constant`."""
    return rng.choice([c for c in CONSTANTS if c != constant])


def attempt(problem: Problem, role: Role, skill: Skill, rng: random.Random) -> Attempt:
    """One demonstration for `problem`, whose constants are those that the agent believes in."""

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
    """One slip after which the function does not parse."""
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
    """One demonstration for the second turn.

    Only what stands in the prompt may be demonstrated: without the problem in it, the constants are those of the
    agent's own previous function, right or wrong; told that a test fails (`failing`), the agent doubts them now and
    then, and one that is not there has to be guessed.
    """
    believed = problem
    if not sees_problem:
        doubts = bool(failing) and rng.random() < 0.3

        def believe(constant: int | None) -> int:
            return rng.choice(CONSTANTS) if constant is None or doubts else constant

        believed = replace(problem, a=believe(previous.a), b=believe(previous.b))
    return attempt(believed, previous.role, skill, rng)
