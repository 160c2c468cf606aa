"""Families of the hard set: sequences of two or three steps, of which the helper takes one and the entry point the
others.

Of three steps the helper may take the first or the second. Both decompositions (`ways`) earn the full reward, but only
if both agents use the same one: otherwise one step happens twice and another never. The base policy uses both equally
often, so reinforcement has to find an agreement, and separately trained pairs may agree on different ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, permutations, product
from typing import Any

from tools.toy.steps import INT, LIST, RECURSIVE, TEXT, TOTAL, Step

INPUTS: dict[str, tuple[object, ...]] = {
    "int": (3, 8, 14, 21, 27, 36, 45, 58, 64, 77, 83, 96),
    "list": ([3, 12], [9, 5, 2], [14, 8, 1, 6], [7, 7, 20], [4, 11, 13], [18, 2, 10, 5], [16, 9], [6, 15, 3]),
    "str": ("ab", "now", "cat", "tree", "go on", "x y z", "moon", "abc"),
}
ENTRY_POINTS = {"int": ("convert", "adjust", "grade"), "list": ("digest", "gather"), "str": ("label", "stamp")}
ARGUMENTS = {"int": ("x", "n"), "list": ("items", "nums"), "str": ("text", "word")}
ANNOTATIONS = {"int": "int", "list": "list[int]", "str": "str"}

TESTS = 6
"""Number of asserts per problem."""
UNSEEN_SHARE = 5
"""One of this many families of a kind is held out from all training, including that of the base policy."""


@dataclass(frozen=True, slots=True)
class Family:
    """A sequence of steps. Some families of every `kind` are held out."""

    kind: str
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        return "_".join(step.name for step in self.steps)

    @property
    def ways(self) -> range:
        """The steps that the helper may take for the full reward; with the last one main would be a thin wrapper."""
        return range(len(self.steps) - 1)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: a family with names and one constant per step (None for a step without a constant)."""

    family: Family
    entry_point: str
    argument: str
    constants: tuple[int | None, ...]

    @property
    def key(self) -> tuple[str, tuple[int | None, ...]]:
        """The identity of the problem, without names."""
        return (self.family.name, self.constants)

    @property
    def sentence(self) -> str:
        said = zip(self.family.steps, self.constants, strict=True)
        return f"Start with {self.argument}: {', then '.join(step.sentence(c) for step, c in said)}."

    @property
    def prompt(self) -> str:
        """Signature and docstring, in HumanEval's form."""
        steps = self.family.steps
        signature = f"({self.argument}: {ANNOTATIONS[steps[0].takes]}) -> {ANNOTATIONS[steps[-1].gives]}"
        return f'def {self.entry_point}{signature}:\n    """{self.sentence}"""\n'

    def applied(self, numbers: Sequence[int], operand: str, constants: Sequence[int | None] | None = None) -> str:
        """Return the expression that applies the steps `numbers` to `operand`, optionally with other constants."""
        for number in numbers:
            operand = self.family.steps[number].apply(operand, (constants or self.constants)[number])
        return operand

    def whole(self, constants: Sequence[int | None] | None = None) -> str:
        """Return the expression without a helper."""
        return self.applied(range(len(self.constants)), self.argument, constants)

    @property
    def joint(self) -> tuple[str, str]:
        """Helper and entry point that earn the full reward, the helper with the first step."""
        v, first = self.argument, self.family.steps[0]
        main = self.applied(range(1, len(self.constants)), f"aux({v})")
        aux = f"def aux({v}):\n    return {first.body('aux', v, self.constants[0])}"
        return aux, f"def {self.entry_point}({v}):\n    return {main}"

    def tests(self) -> str:
        """Return HumanEval's `check` function with computed expected values."""
        function = self._function(self.whole())
        lines = [f"    assert candidate({value!r}) == {function(value)!r}" for value in self._arguments()]
        return "\n".join(["def check(candidate):", *lines]) + "\n"

    @property
    def fair(self) -> bool:
        """Whether the tests discriminate: results differ, and mixed decompositions fail nearly all of them."""
        arguments, function = self._arguments(), self._function(self.whole())
        passed = [sum(other(v) == function(v) for v in arguments) for other in self._mixed()]
        return len({function(v) for v in arguments}) > 2 and max(passed, default=0) < 2

    def _arguments(self) -> list[Any]:
        """Return the arguments of the tests, preferring arguments on which mixed decompositions fail."""
        inputs = INPUTS[self.family.steps[0].takes]
        function, mixed = self._function(self.whole()), self._mixed()
        drawn = random.Random(f"{self.family.name}/{self.constants}").sample(inputs, len(inputs))
        chosen = sorted(drawn, key=lambda value: any(other(value) == function(value) for other in mixed))[:TESTS]
        return sorted(chosen, key=inputs.index)

    def _mixed(self) -> list[Callable[[Any], Any]]:
        """Return the functions of mixed decompositions, as far as their types match."""
        steps, last = self.family.steps, len(self.family.steps)
        return [
            self._function(self.applied([*range(main), helper, *range(main + 1, last)], self.argument))
            for helper, main in permutations(self.family.ways, 2)
            if (steps[helper].takes, steps[helper].gives) == (steps[main].takes, steps[main].gives)
        ]

    def _function(self, expression: str) -> Callable[[Any], Any]:
        function: Callable[[Any], Any] = eval(f"lambda {self.argument}: {expression}")
        return function


def all_families() -> list[Family]:
    """Return all families, grouped by kind."""
    rng = random.Random("hard")

    def some(rows: Sequence[tuple[Step, ...]], count: int) -> list[tuple[Step, ...]]:
        return rng.sample(list(rows), count)

    first = [(step, *pair) for step in RECURSIVE for pair in permutations(INT, 2)]
    second = [(a, step, b) for step in RECURSIVE for a, b in product(INT, INT) if a.name != "minus"]
    kinds: dict[str, Sequence[tuple[Step, ...]]] = {
        "int_pair": some(list(permutations(INT, 2)), 15),
        "int": some(list(permutations(INT, 3)), 30),
        "recursion_pair": list(product(RECURSIVE, INT)),
        "recursion": some(first + second, 20),
        "list": [*((*pair, TOTAL) for pair in permutations(LIST, 2)), *((a, TOTAL, b) for a in LIST for b in INT)],
        "text_pair": some(list(permutations(TEXT, 2)), 10),
        "text": list(permutations(TEXT, 3)),
    }
    return [Family(kind, steps) for kind, rows in kinds.items() for steps in rows]


def draw(family: Family, count: int) -> list[Problem]:
    """Return up to `count` fair problems of a family with different constants, deterministically."""
    rng = random.Random(f"problems/{family.name}")
    choices: list[list[int | None]] = [[*step.constants] or [None] for step in family.steps]
    every = list(product(*choices))
    rng.shuffle(every)
    kind = family.steps[0].takes
    drawn = (Problem(family, rng.choice(ENTRY_POINTS[kind]), rng.choice(ARGUMENTS[kind]), c) for c in every)
    return list(islice((problem for problem in drawn if problem.fair), count))


def split_problems(evaluation: int = 24, train: int = 2, spare: int = 40) -> dict[str, list[Problem]]:
    """Return four splits, no two of which share a family's constants.

    `unseen` has one problem of each held-out family. Of each other family, `train` has `train` problems and `spare` up
    to `spare` problems; the base policy is trained on both. `eval` has one problem of each of `evaluation` random
    families.
    """
    splits: dict[str, list[Problem]] = {"train": [], "eval": [], "unseen": [], "spare": []}
    known, unseen = _known_and_unseen(1 + train + spare)
    splits["unseen"] = [problems[0] for problems in unseen]
    tested = random.Random("eval").sample(range(len(known)), evaluation)
    for number, (held_out, *others) in enumerate(known):
        splits["eval"] += [held_out] if number in tested else []
        splits["train"] += others[:train]
        splits["spare"] += others[train:]
    for problems in splits.values():
        random.Random("order").shuffle(problems)
    return splits


def held_out_problems(per_unseen_family: int = 4) -> dict[str, list[Problem]]:
    """Return larger splits `eval` and `unseen` for evaluations with small errors. They include the problems that
    `split_problems` has there, and none of `train` and `spare`.

    `eval` has one problem of each family in training, `unseen` up to `per_unseen_family` problems of each other family.
    """
    known, unseen = _known_and_unseen(per_unseen_family)
    return {
        "eval": [problems[0] for problems in known],
        "unseen": [problem for problems in unseen for problem in problems],
    }


def _known_and_unseen(count: int) -> tuple[list[list[Problem]], list[list[Problem]]]:
    """Return up to `count` problems of each family in training, and of each held-out family."""
    drawn = [problems for family in all_families() if (problems := draw(family, count))]
    known = [problems for number, problems in enumerate(drawn) if number % UNSEEN_SHARE]
    return known, drawn[::UNSEEN_SHARE]
