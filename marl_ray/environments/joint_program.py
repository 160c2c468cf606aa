"""The program that the answers of a team form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_ray.core.episode import Task
from marl_ray.environments.abilities import labelled_answers, previous_answers
from marl_ray.environments.base import Environment


def joint_program(environment: Environment[Any], task: Task, responses: Sequence[str]) -> str:
    """Return the program that the responses form, or all responses under their roles if they form none."""
    attempt = environment.attempt(task, responses, last=True)
    program = attempt.program
    if isinstance(program, tuple) and program:
        program = program[0]
    # An empty tuple, and the program of another kind of environment, have no source.
    source = getattr(program, "source", None)
    if isinstance(source, str):
        return source
    return labelled_answers(environment.roles(task), previous_answers(environment, attempt))
