"""The tests that feedback will show are run first, in a guest of their own.

Otherwise a program could remember the inputs of the tests before them and tell them in an error that the feedback
quotes, and tests before them could use up the program's budget. So a suite is cut in two. A part is given, of the
statements that belong to the other part, only those that its own tests depend on: what binds a name that they use, and
what mentions a variable that could have been changed there. (Tests that share a variable thus bring each other along;
those that share only imports, functions and constants do not.) For unittest see `units`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace

from .parser import parse_tests
from .statements import Statement
from .suite import Form, Suite
from .syntax import parse
from .units import only_units

SuitePart = tuple[tuple[int, ...], Suite]
"""The numbers of the cases in the whole suite, and a suite of these alone."""


@functools.lru_cache(maxsize=256)
def split_suite(
    tests: str | tuple[str, ...], entry_point: str, form: Form, prompt: str, visible: int | None
) -> tuple[SuitePart, ...]:
    """A suite in the order in which it is run. `visible` n: the first n tests; -n: the last n; 0 or None: all.

    Raises ValueError as `parse_tests` does.
    """
    suite = parse_tests(tests, entry_point, form, prompt)
    numbers = tuple(range(len(suite.cases)))
    first = numbers[:visible] if visible is None or visible > 0 else numbers[visible:]
    if len(first) in (0, len(numbers)):
        return ((numbers, suite),)
    rest = tuple(number for number in numbers if number not in first)
    return tuple((chosen, _part(suite, chosen, entry_point, prompt)) for chosen in (first, rest))


def _part(suite: Suite, chosen: Sequence[int], entry_point: str, prompt: str) -> Suite:
    cases = [suite.cases[number] for number in chosen]
    if suite.form == "unittest":
        units = [case.unit for case in cases if case.unit is not None]
        return replace(suite, cases=tuple(cases), source=only_units(suite.source, units))
    if suite.form == "stdio":
        return replace(suite, cases=tuple(cases))
    statements = [Statement(number, node) for number, case in enumerate(suite.cases) for node in parse(case.plain).body]
    borrowed = _borrowed(statements, set(chosen))
    items = ["\n".join([*borrowed[number], suite.cases[number].plain]) for number in chosen]
    alone = parse_tests(tuple(items), entry_point, "asserts", prompt)
    shown = tuple(replace(case, source=whole.source) for case, whole in zip(alone.cases, cases, strict=True))
    return replace(alone, cases=shown)


def _borrowed(statements: Sequence[Statement], chosen: Set[int]) -> dict[int, list[str]]:
    """For each chosen case the sources, in order, of what it needs of the cases that are not chosen."""
    times = Counter(name for statement in statements for name in statement.binds)
    definitions = [statement for statement in statements if statement.is_definition()]
    fixed = {name for statement in definitions for name in statement.binds if times[name] == 1}
    variables = times.keys() - fixed
    there = {statement for statement in statements if statement.case in chosen}
    found: dict[int, list[str]] = {}
    for number in sorted(chosen):
        live: set[str] = set()
        needed = []
        for statement in reversed(statements):
            if statement.case == number:
                live = statement.before(live)
            elif statement.case < number and (statement.binds & live or statement.uses & live & variables):
                live = statement.before(live)
                if statement not in there:
                    needed.append(statement)
        there.update(needed)
        found[number] = [statement.source() for statement in reversed(needed)]
    return found
