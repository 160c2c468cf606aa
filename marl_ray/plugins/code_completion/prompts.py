"""The prompts of code completion: first turn, instructions to revise, and the question to an expert."""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.environments.code_generation.prompts import listed

METHODS_ONLY = (
    "Answer with the methods only, and imports if they need any: no markdown, no explanation, no tests, no other code."
)
NOTHING = "Other agents write all methods of the class `{name}`. Answer with `pass`."

QUESTION = """\
Several programmers complete a Python class, each some of its methods, without seeing each other's work.

The class:
{skeleton}

Who writes what:
{shares}

Their program:
{program}

Suggest an edit for the work of each of these programmers: {names}. Reply with one JSON object and nothing else. Its \
keys are the programmers' names, its values are strings: a short suggestion, or the corrected methods."""


def first_prompts(skeleton: str, class_name: str, shares: Sequence[Sequence[str]]) -> list[str]:
    """Return the first prompts, one per agent: the skeleton and the names of the agent's methods."""
    skeleton = skeleton.strip("\n")
    prompts = []
    for instruction in _instructions("Complete the class `{name}`: write {methods}.", class_name, shares):
        prompts.append(f"{skeleton}\n\n{instruction}\n")
    return prompts


def revisions(class_name: str, shares: Sequence[Sequence[str]]) -> list[str]:
    """Return the closing instructions of later turns, one per agent."""
    return _instructions("Revise {methods} of the class `{name}`.", class_name, shares)


def question(skeleton: str, program: str, roles: Sequence[str], shares: Sequence[Sequence[str]]) -> str:
    """Return the question to an expert: an edit of each agent's work in a joint program."""
    lines = []
    for role, methods in zip(roles, shares, strict=True):
        lines.append(f"{role}: {', '.join(methods) or 'nothing'}")
    return QUESTION.format(
        skeleton=skeleton.strip(),
        shares="\n".join(lines),
        program=program.strip(),
        names=", ".join(roles),
    )


def _instructions(task: str, class_name: str, shares: Sequence[Sequence[str]]) -> list[str]:
    instructions = []
    for agent, own in enumerate(shares):
        if not own:
            instructions.append(NOTHING.format(name=class_name))
            continue
        text = task.format(name=class_name, methods=_named(own))
        writers = 0
        others: list[str] = []
        for other, methods in enumerate(shares):
            if other != agent and methods:
                writers += 1
                others += methods
        if writers:
            writes = "Another agent writes" if writers == 1 else "Other agents write"
            pronoun = "it" if len(others) == 1 else "them"
            text += f" {writes} {_named(others)}: you may call {pronoun} but must not define {pronoun}."
        instructions.append(f"{text} {METHODS_ONLY}")
    return instructions


def _named(methods: Sequence[str]) -> str:
    """Return ``the method `a` `` or ``the methods `a` and `b` ``."""
    names = listed([f"`{name}`" for name in methods])
    if len(methods) == 1:
        return f"the method {names}"
    return f"the methods {names}"
