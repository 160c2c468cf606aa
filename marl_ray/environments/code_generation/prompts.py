"""The prompts of code generation: first turn, instructions to revise, and the question to an expert.

The prompts are short and regular, because tiny policies read them too. The bundled policies were trained on these exact
texts, which a golden test fixes.
"""

from __future__ import annotations

from collections.abc import Sequence

CODE_ONLY = "Answer with the function only: no markdown, no explanation, no tests."
PRINTING = "`{name}` has no parameters: it reads the input from standard input and prints the answer."

SEVERAL = """\
Several programmers each write one function of a Python program, without seeing each other's work.

Problem:
{problem}

Their program:
{program}

Suggest an edit for each of these functions: {names}. Reply with one JSON object and nothing else. Its keys \
are the functions' names, its values are strings: a short suggestion, or the corrected function."""

ONE = """\
A programmer writes one function of a Python program.

Problem:
{problem}

The program:
{program}

Suggest an edit for the function {names}. Reply with one JSON object and nothing else. Its key is the function's \
name, its value is a string: a short suggestion, or the corrected function."""


def first_prompts(problem: str, entry_point: str, helpers: Sequence[str], script: bool = False) -> list[str]:
    """Return the first prompts, main's last. `script`: main reads standard input and prints."""
    instructions = [_first_helper(helper, entry_point, helpers) for helper in helpers]
    instructions.append(_first_main(entry_point, helpers))
    text = problem.strip("\n")
    rest = f"{_printing(entry_point, script)} {CODE_ONLY}\n"
    return [f"{text}\n\n{instruction}{rest}" for instruction in instructions]


def revisions(entry_point: str, helpers: Sequence[str], script: bool = False) -> list[str]:
    """Return the closing instructions of later turns, one per agent."""
    instructions = []
    for helper in helpers:
        instructions.append(f"Revise your helper function `{helper}`, which `{entry_point}` may call. {CODE_ONLY}")
    main = f"Revise your function `{entry_point}`.{_permission(helpers)}"
    instructions.append(f"{main}{_printing(entry_point, script)} {CODE_ONLY}")
    return instructions


def question(problem: str, program: str, names: Sequence[str]) -> str:
    """Return the question to an expert: an edit for each function of a joint program."""
    request = ONE if len(names) == 1 else SEVERAL
    return request.format(problem=problem.strip(), program=program.strip(), names=", ".join(names))


def _printing(entry_point: str, script: bool) -> str:
    if not script:
        return ""
    return f" {PRINTING.format(name=entry_point)}"


def _first_helper(helper: str, entry_point: str, helpers: Sequence[str]) -> str:
    others = [f"`{name}`" for name in helpers if name != helper]
    others.append(f"`{entry_point}`")
    writers = "Another agent writes"
    if len(others) > 1:
        writers = "Other agents write"
    return (
        f"Write a helper function `{helper}` that is useful for this problem and returns a value. "
        f"{writers} {listed(others)}; `{entry_point}` may call `{helper}(...)`."
    )


def _first_main(entry_point: str, helpers: Sequence[str]) -> str:
    instruction = f"Write the function `{entry_point}`."
    if not helpers:
        return instruction
    writers = "Another agent writes the helper"
    if len(helpers) > 1:
        writers = "Other agents write the helpers"
    names = listed([f"`{helper}`" for helper in helpers])
    return f"{instruction} {writers} {names}.{_permission(helpers)}"


def _permission(helpers: Sequence[str]) -> str:
    if not helpers:
        return ""
    calls = listed([f"`{helper}(...)`" for helper in helpers])
    pronoun = "it" if len(helpers) == 1 else "them"
    return f" You may call {calls} but must not define {pronoun}."


def listed(names: Sequence[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    if len(names) == 1:
        return names[0]
    return ", ".join(names[:-1]) + " and " + names[-1]


def numbered_names(name: str, count: int) -> list[str]:
    """Return `name` alone for a count of 1, or `name_1`, `name_2`..."""
    if count == 1:
        return [name]
    return [f"{name}_{number}" for number in range(1, count + 1)]
