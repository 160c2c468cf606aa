"""Noisy demonstrations for the hard set, like `demonstrations` for the easier one.

A cooperating agent also chooses a decomposition (`way`): which step the helper takes. All decompositions are equally
likely and agents choose independently, so helper and entry point of a base policy match only by chance. In the second
turn an agent mostly keeps its decomposition, less often after a failed test.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tools.toy.demonstrations import WRONG_NAMES, Role, Skill, misspell
from tools.toy.hard_families import Problem
from tools.toy.steps import Step

FIRST_TURN = Skill(name=0.97, constant=0.96, structure=0.8, returns=0.97, syntax=0.98)
SECOND_TURN = FIRST_TURN.better(0.4)

KEEPS_WAY = {True: 0.5, False: 0.95, None: 0.7}
"""Probability of keeping the decomposition, by whether a test failed (None: unknown)."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A response, the constants in its code (None for a step that it does not contain), and the helper's step according
    to its author (None without cooperation)."""

    role: Role
    text: str
    constants: tuple[int | None, ...]
    way: int | None


def attempt(problem: Problem, role: Role, skill: Skill, rng: random.Random, way: int | None = None) -> Attempt:
    """Return a demonstration for `problem`, whose constants are the constants that the agent assumes. `way` fixes the
    decomposition of a cooperating agent."""

    def right(chance: float) -> bool:
        return rng.random() < chance

    steps = problem.family.steps
    believed = tuple(
        constant if right(skill.constant) else other_constant(step, constant, rng)
        for step, constant in zip(steps, problem.constants, strict=True)
    )
    chosen = rng.choice(problem.family.ways) if way is None else way
    cooperates = role != "single" and right(skill.structure)
    own = problem.entry_point if role != "aux" else "aux"
    name = own if right(skill.name) else rng.choice(WRONG_NAMES)
    v, every = problem.argument, range(len(steps))
    numbers: Sequence[int] = every
    before: list[str] = []
    match role:
        case "aux" if cooperates:
            numbers = [chosen]
            value = steps[chosen].body(name, v, believed[chosen])
        case "main" if cooperates:
            numbers = [number for number in every if number != chosen]
            call = f"aux({problem.applied(range(chosen), v, believed)})"
            if right(0.2):
                before.append(f"part = {call}")
                call = "part"
            value = problem.applied(range(chosen + 1, len(steps)), call, believed)
        case "main":
            kind = rng.choice(("alone", "alone", "thin", "thin", "ignores"))
            numbers = [] if kind == "thin" else every
            value = f"aux({v})" if kind == "thin" else problem.whole(believed)
            before += [f"aux({v})"] if kind == "ignores" else []
        case _:
            value = problem.whole(believed)
    last = f"return {value}" if right(skill.returns) else rng.choice((f"print({value})", f"result = {value}"))
    lines = [f"def {name}({v}):", *(f"    {line}" for line in (*before, last))]
    if not right(skill.syntax):
        lines = misspell(lines, rng)
    written = tuple(believed[number] if number in numbers else None for number in every)
    return Attempt(role, "\n".join(lines), written, chosen if cooperates else None)


def other_constant(step: Step, constant: int | None, rng: random.Random) -> int | None:
    """Return a wrong constant, None for a step without a constant."""
    others = [c for c in step.constants if c != constant]
    return rng.choice(others) if others else None


def second_attempt(
    problem: Problem, previous: Attempt, skill: Skill, rng: random.Random, *, sees_problem: bool, failing: bool | None
) -> Attempt:
    """Return a demonstration for the second turn, which uses only information in the prompt.

    If the prompt does not contain the problem, the constants come from the agent's own previous function, and missing
    constants are guessed.
    """
    believed = problem
    if not sees_problem:
        guessed = (
            rng.choice(step.constants) if constant is None and step.constants else constant
            for step, constant in zip(problem.family.steps, previous.constants, strict=True)
        )
        believed = replace(problem, constants=tuple(guessed))
    way = previous.way if rng.random() < KEEPS_WAY[failing] else None
    return attempt(believed, previous.role, skill, rng, way)
