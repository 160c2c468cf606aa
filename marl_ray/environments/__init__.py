"""What a kind of task means: roles, prompts, how completions join into a program, reward levels."""

from __future__ import annotations

from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.plugins import Registry

ENVIRONMENTS = Registry("environment", {"code_generation": "marl_ray.environments.code_generation:CodeGeneration"})

DATASET_TYPES = ("humaneval", "coophumaneval", "mbpp", "toy")
"""Kinds of tasks there are."""
PLANNED_TYPES = ("classeval", "bugfix")
"""Kinds of tasks that have a name already, but no environment yet."""


def make_environment(dataset_type: str, num_agents: int, count_untrusted: bool = True) -> CodeGeneration:
    """The environment of a dataset's type. Raises ValueError, in one line, for types there are none for."""
    if dataset_type in DATASET_TYPES:
        return CodeGeneration(num_agents, count_untrusted)
    what = "is not available yet" if dataset_type in PLANNED_TYPES else "is not known"
    raise ValueError(f"dataset type {dataset_type!r} {what} (available: {', '.join(DATASET_TYPES)})")


__all__ = ["DATASET_TYPES", "PLANNED_TYPES", "CodeGeneration", "make_environment"]
