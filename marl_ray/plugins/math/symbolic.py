"""Equality of expressions by math-verify, as programs of the sandbox.

A model's answer is hostile text: sympy evaluates the text, `9^{9^{9^9}}` never ends, and a parser may have holes.
Therefore answers are literals in tests of a program that only the sandbox executes, within its limits.
"""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.sandbox import Limits, Program

PACKAGES = ("math_verify", "latex2sympy2_extended", "sympy", "mpmath", "antlr4")
"""Import names that guests need (`sandbox.packages`)."""
LIMITS = Limits(test_cpu_s=2.0, test_wall_s=10.0, program_wall_s=30.0)
"""A comparison takes 0.1 CPU seconds. An answer that takes 2 is wrong."""
SOURCE = r"""
from math_verify import LatexExtractionConfig, parse, verify

LATEX = [LatexExtractionConfig(boxed_match_priority=0)]  # the only other reader, of plain expressions, calls eval


def same(reference, answer):
    values = []
    for text in (reference, answer):
        # The sandbox has the deadline: a signal's handler in this process could be caught by the library.
        values.append(parse("\\boxed{" + text + "}", LATEX, fallback_mode="no_fallback", parsing_timeout=None))
    if not values[0] or not values[1]:
        return False
    return bool(verify(values[0], values[1], timeout_seconds=None))
"""


def equality_program(reference: str, answers: Sequence[str]) -> Program:
    """Return a program with one test per answer, which passes if the answer equals the reference."""
    tests = []
    for answer in answers:
        tests.append(f"assert same({reference!a}, {answer!a}) == True")
    return Program(SOURCE, tuple(tests), "same", form="asserts", limits=LIMITS)
