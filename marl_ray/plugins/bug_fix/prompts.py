"""The prompts of bug fixing: first turn, instructions to revise, and the question to an expert."""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.environments.abilities import labelled_answers
from marl_ray.environments.code_generation.prompts import listed, numbered_names
from marl_ray.plugins.bug_fix.patching import BuggyProgram

BUG = "This program should do that, but it has a bug:"
FORM = "Answer with two lines and nothing else:\nline: the number of the line that has to change\nwhy: a short reason"
NOTHING_ELSE = "no markdown, no explanation, no tests"
EXPERT = """\
A Python program has a bug. Programmers work on it without seeing each other's work.

Problem:
{problem}

The program:
{program}

Their answers:
{answers}

Suggest an edit for each of these answers: {names}. Reply with one JSON object and nothing else. Its keys are the \
answers' names, its values are strings: a short suggestion, or the corrected answer."""


def role_names(diagnoses: bool, patchers: int) -> list[str]:
    return ["diagnosis"] * diagnoses + numbered_names("patch", patchers)


def first_prompts(problem: str, program: BuggyProgram, diagnoses: bool, shares: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the first prompts, one per agent. `shares`: the functions of each patcher."""
    problem = problem.strip("\n")
    prompts = []
    if diagnoses:
        others = "Another agent corrects" if len(shares) == 1 else "Other agents correct"
        task = f"Find the bug. {others} the program. {FORM}"
        prompts.append(f"{problem}\n\n{BUG}\n{numbered(program)}\n\n{task}\n")
    for own in shares:
        task = _patch(own, shares, diagnoses)
        prompts.append(f"{problem}\n\n{BUG}\n{program.text}\n\n{task}\n")
    return prompts


def revisions(diagnoses: bool, shares: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the closing instructions of later turns, one per agent."""
    instructions = []
    if diagnoses:
        instructions.append(f"Revise your diagnosis of the bug. {FORM}")
    for own in shares:
        instructions.append(f"Revise your correction of {_named(own)}. {_form(own)}")
    return instructions


def question(problem: str, program: BuggyProgram, roles: Sequence[str], answers: Sequence[str]) -> str:
    """Return the question to an expert about a joint action."""
    return EXPERT.format(
        problem=problem.strip(),
        program=numbered(program),
        answers=labelled_answers(roles, answers),
        names=", ".join(roles),
    )


def numbered(program: BuggyProgram) -> str:
    """Return the program with line numbers."""
    lines = []
    for number, line in enumerate(program.lines, 1):
        lines.append(f"{number}: {line}".rstrip())
    return "\n".join(lines)


def _patch(own: tuple[str, ...], shares: Sequence[tuple[str, ...]], diagnoses: bool) -> str:
    sentences = [f"Correct {_named(own)} and change as few lines as possible."]
    others: list[str] = []
    for names in shares:
        if names is not own:
            others += names
    if others:
        sentences.append(f"Other agents correct {_named(others)}.")
    if diagnoses:
        sentences.append("Another agent says where the bug is.")
    return " ".join([*sentences, _form(own)])


def _form(own: tuple[str, ...]) -> str:
    if len(own) == 1:
        return f"Answer with the function only: {NOTHING_ELSE}."
    return f"Answer with one or more of these functions only (one that you leave out stays as it is): {NOTHING_ELSE}."


def _named(names: Sequence[str]) -> str:
    return listed([f"`{name}`" for name in names])
