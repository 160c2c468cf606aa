"""Steps of the hard set's problems: single operations as words, as an expression and, for some, as recursion.

A problem is a sequence of steps with matching types. The second agent's part depends on the step that the first agent
takes.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

DIGITS = range(2, 10)
"""Constants have one digit and therefore one token, so a wrong constant is one wrong choice."""

ATOMS = (ast.Name, ast.Call, ast.Subscript, ast.ListComp)
"""Expressions that need no brackets as operands."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation. In the templates, `{c}` is the constant, `{v}` the operand within brackets, `{o}` the operand of
    an operator, and `{f}` in `recursion` the function's own name. `constants` is empty for a step without a
    constant."""

    name: str
    takes: str
    gives: str
    words: str
    expression: str
    constants: range = DIGITS
    recursion: str | None = None

    def sentence(self, constant: int | None) -> str:
        """Return the step as words in a problem."""
        return self.words.format(c=constant)

    def apply(self, operand: str, constant: int | None) -> str:
        """Return the expression that applies the step to `operand`."""
        return self.expression.format(v=operand, o=bracketed(operand), c=constant)

    def body(self, function: str, argument: str, constant: int | None) -> str:
        """Return the return expression of a function that applies the step to its argument, recursive if possible."""
        template = self.recursion or self.expression
        return template.format(f=function, v=argument, o=argument, c=constant)


def bracketed(expression: str) -> str:
    """Return the expression, in brackets if it needs them as an operand."""
    return expression if isinstance(ast.parse(expression, mode="eval").body, ATOMS) else f"({expression})"


INT = (
    Step("plus", "int", "int", "add {c}", "{o} + {c}"),
    Step("minus", "int", "int", "subtract {c}", "{o} - {c}"),
    Step("times", "int", "int", "multiply by {c}", "{o} * {c}"),
    Step("divide", "int", "int", "divide by {c}, rounding down", "{o} // {c}"),
    Step("remainder", "int", "int", "take the remainder by {c}", "{o} % {c}", range(3, 10)),
    Step("distance", "int", "int", "take the distance from {c}", "abs({v} - {c})"),
)
RECURSIVE = (
    Step(
        "digits",
        "int",
        "int",
        "sum the digits",
        "sum(int(d) for d in str({v}))",
        range(0),
        "{v} if {v} < 10 else {v} % 10 + {f}({v} // 10)",
    ),
    Step(
        "ladder",
        "int",
        "int",
        "sum from it down to 1 in steps of {c}",
        "sum(range({v}, 0, -{c}))",
        DIGITS,
        "0 if {v} < 1 else {v} + {f}({v} - {c})",
    ),
)
LIST = (
    Step("above", "list", "list", "keep the items above {c}", "[i for i in {v} if i > {c}]"),
    Step("scale", "list", "list", "multiply every item by {c}", "[i * {c} for i in {v}]"),
    Step("shift", "list", "list", "add {c} to every item", "[i + {c} for i in {v}]"),
)
TOTAL = Step("total", "list", "int", "sum the items", "sum({v})", range(0))
TEXT = (
    Step("repeat", "str", "str", "repeat it {c} times", "{o} * {c}", range(2, 6)),
    Step("mark", "str", "str", "append the digit {c}", "{o} + '{c}'"),
    Step("front", "str", "str", "put the digit {c} in front", "'{c}' + {o}"),
    Step("reverse", "str", "str", "reverse it", "{o}[::-1]", range(0)),
)
