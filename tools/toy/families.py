"""Families of toy problems, small enough for a tiny model and divided between two agents.

Each family has two constants, `a` and `b`. By convention the helper computes the part with `a`, and the entry point
applies the part with `b` to the helper's value. The prompts do not state the convention: the base policy mostly follows
it, because its demonstrations do, and reinforcement strengthens it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

CONSTANTS = range(2, 10)
"""Constants have one digit and therefore one token, so a wrong constant is one wrong choice."""

INPUTS: dict[str, tuple[object, ...]] = {
    "int": (0, 1, 4, 7, 10, 13, 25, 38),
    "list": ([1], [5, 2], [3, 9, 4], [8, 1, 6, 7], [2, 2, 10], [12, 5, 7, 3, 9], [6, 11], [4, 8, 15, 16]),
    "str": ("a", "no", "cat", "tree", "go on", "x y z"),
}
"""Arguments of the tests, chosen so that a wrong threshold or modulus may pass some of the asserts."""

ANNOTATIONS = {"int": "int", "list": "list[int]", "str": "str"}


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of problem. `{v}` is the argument, `{p}` the helper's value, `{a}` and `{b}` the constants."""

    name: str
    entry_points: tuple[str, ...]
    kind: str
    returns: str
    arguments: tuple[str, ...]
    sentence: str
    part: str
    rest: str


FAMILIES: tuple[Family, ...] = (
    Family(
        "times_plus",
        ("scale_add", "stretch"),
        "int",
        "int",
        ("x", "n"),
        "Return {a} times {v} plus {b}.",
        "{a} * {v}",
        "{p} + {b}",
    ),
    Family(
        "times_minus",
        ("scale_cut", "shrink"),
        "int",
        "int",
        ("x", "n"),
        "Return {a} times {v} minus {b}.",
        "{a} * {v}",
        "{p} - {b}",
    ),
    Family(
        "plus_times",
        ("add_scale", "grow"),
        "int",
        "int",
        ("x", "n"),
        "Add {a} to {v}, then multiply by {b}.",
        "{v} + {a}",
        "{p} * {b}",
    ),
    Family(
        "square_minus",
        ("square_cut", "curve"),
        "int",
        "int",
        ("x", "n"),
        "Return {a} times the square of {v}, minus {b}.",
        "{a} * {v} ** 2",
        "{p} - {b}",
    ),
    Family(
        "divide_plus",
        ("share_add", "portion"),
        "int",
        "int",
        ("x", "n"),
        "Divide {v} by {a}, rounding down, then add {b}.",
        "{v} // {a}",
        "{p} + {b}",
    ),
    Family(
        "remainder_times",
        ("cycle_scale", "clock"),
        "int",
        "int",
        ("x", "n"),
        "Take the remainder of {v} by {a}, then multiply by {b}.",
        "{v} % {a}",
        "{p} * {b}",
    ),
    Family(
        "distance_plus",
        ("gap_add", "detour"),
        "int",
        "int",
        ("x", "n"),
        "Return the distance of {v} from {a}, plus {b}.",
        "abs({v} - {a})",
        "{p} + {b}",
    ),
    Family(
        "sum_minus",
        ("total_cut", "budget"),
        "list",
        "int",
        ("items", "nums"),
        "Return {a} times the sum of {v}, minus {b}.",
        "{a} * sum({v})",
        "{p} - {b}",
    ),
    Family(
        "largest_plus",
        ("top_add", "peak"),
        "list",
        "int",
        ("items", "nums"),
        "Return {a} times the largest of {v}, plus {b}.",
        "{a} * max({v})",
        "{p} + {b}",
    ),
    Family(
        "first_times",
        ("head_scale", "opening"),
        "list",
        "int",
        ("items", "nums"),
        "Sum the first {a} of {v}, then multiply by {b}.",
        "sum({v}[:{a}])",
        "{p} * {b}",
    ),
    Family(
        "above_times",
        ("count_scale", "score"),
        "list",
        "int",
        ("items", "nums"),
        "Count how many of {v} are above {a}, then multiply by {b}.",
        "sum(i > {a} for i in {v})",
        "{p} * {b}",
    ),
    Family(
        "repeat_append",
        ("repeat_mark", "label"),
        "str",
        "str",
        ("text", "word"),
        "Repeat {v} {a} times, then append the digit {b}.",
        "{a} * {v}",
        "{p} + '{b}'",
    ),
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: a family with names and constants."""

    family: Family
    entry_point: str
    argument: str
    a: int
    b: int

    @property
    def key(self) -> tuple[str, int, int]:
        """The identity of the problem, without names, so no eval task is a renamed train task."""
        return (self.family.name, self.a, self.b)

    @property
    def sentence(self) -> str:
        return self.family.sentence.format(v=self.argument, a=self.a, b=self.b)

    @property
    def prompt(self) -> str:
        """Signature and docstring, in HumanEval's form."""
        family = self.family
        signature = f"def {self.entry_point}({self.argument}: {ANNOTATIONS[family.kind]}) -> {family.returns}:"
        return f'{signature}\n    """{self.sentence}"""\n'

    def part(self, a: int | None = None) -> str:
        """Return the helper's expression, optionally with another constant."""
        return self.family.part.format(v=self.argument, a=self.a if a is None else a)

    def rest(self, value: str, b: int | None = None) -> str:
        """Return the entry point's expression of the helper's `value`, optionally with another constant."""
        return self.family.rest.format(p=value, b=self.b if b is None else b)

    def whole(self, a: int | None = None, b: int | None = None) -> str:
        """Return the entry point's expression without a helper."""
        part = self.part(a)
        return self.rest(part if self._binds_tightly(part) else f"({part})", b)

    @property
    def joint(self) -> tuple[str, str]:
        """Helper and entry point that earn the full reward."""
        v = self.argument
        main = f"def {self.entry_point}({v}):\n    return {self.rest(f'aux({v})')}"
        return f"def aux({v}):\n    return {self.part()}", main

    @staticmethod
    def _binds_tightly(part: str) -> bool:
        """Return whether a part needs no brackets: only `+`, `-`, `*` and string concatenation are applied to it."""
        return part.endswith(")") or (" * " in part and "+" not in part)

    def tests(self, count: int = 6) -> str:
        """Return HumanEval's `check` function with `count` asserts and computed expected values."""
        inputs = INPUTS[self.family.kind]
        rng = random.Random(f"{self.family.name}/{self.a}/{self.b}")
        lines = ["def check(candidate):"]
        function = eval(f"lambda {self.argument}: {self.whole()}")
        for value in sorted(rng.sample(inputs, min(count, len(inputs))), key=inputs.index):
            lines.append(f"    assert candidate({value!r}) == {function(value)!r}")
        return "\n".join(lines) + "\n"


def all_problems() -> Iterator[Problem]:
    """Yield every family with every pair of constants, and random names that do not reveal the constants."""
    for family in FAMILIES:
        rng = random.Random(family.name)
        for a in CONSTANTS:
            for b in CONSTANTS:
                yield Problem(family, rng.choice(family.entry_points), rng.choice(family.arguments), a, b)


def split_problems(train: int = 16, evaluation: int = 4) -> dict[str, list[Problem]]:
    """Return, per family, `train` and `evaluation` problems with different pairs of constants; the rest are `spare`.

    The base policy is trained on `train` and `spare` problems and on no eval problem.
    """
    splits: dict[str, list[Problem]] = {"train": [], "eval": [], "spare": []}
    for family in FAMILIES:
        problems = [problem for problem in all_problems() if problem.family is family]
        random.Random(f"split/{family.name}").shuffle(problems)
        splits["eval"] += problems[:evaluation]
        splits["train"] += problems[evaluation : evaluation + train]
        splits["spare"] += problems[evaluation + train :]
    return splits
