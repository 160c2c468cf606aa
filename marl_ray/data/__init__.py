"""Datasets: bundled, in local files, or on the hub. Dataset types convert their rows to tasks."""

from __future__ import annotations

from marl_ray.core.errors import UserError
from marl_ray.plugins import IN_MEMORY, Registry

DATASETS = Registry(
    "dataset.type",
    {
        "humaneval": "marl_ray.data.convert:HUMANEVAL",
        "coophumaneval": "marl_ray.data.convert:COOPHUMANEVAL",
        "mbpp": "marl_ray.data.convert:MBPP",
        "classeval": "marl_ray.data.classeval:CLASSEVAL",
        "toy": "marl_ray.data.convert:TOY",
        "bug_fix": "marl_ray.data.convert:BUG_FIX",
        "apps": "marl_ray.data.convert:APPS",
        "livecodebench": "marl_ray.data.convert:LIVECODEBENCH",
        "solver_tester": "marl_ray.data.convert:SOLVER_TESTER",
        "tags": "marl_ray.data.texts:TAGS",
        "grid": "marl_ray.data.grids:GRID",
        "grid_private": "marl_ray.data.grids:GRID_PRIVATE",
        "tldr": "marl_ray.data.texts:TLDR",
        "arxiv": "marl_ray.data.texts:ARXIV",
        "function_calls": "marl_ray.data.function_calls:FUNCTION_CALLS",
        "word_builder": "marl_ray.data.buildings:WORD_BUILDER",
        "house_builder": "marl_ray.data.buildings:HOUSE_BUILDER",
        "travel": "marl_ray.data.travel:TRAVEL",
        "prompts": "marl_ray.data.prompts:PROMPTS",
    },
    needs="task",
)
SOURCES = Registry("dataset.name", {}, needs="splits")
"""Data sets in Python objects, whose attribute `splits` maps names of splits to lists of rows."""
OBJECT = "python:"
"""Prefix of a dataset.name `python:module:Attr`, which names an object of SOURCES."""


def source_name(name: str) -> str | None:
    """Return the name of the object that a dataset.name names, or None for a file or a hub id."""
    if name.startswith(IN_MEMORY):
        return name
    return name.removeprefix(OBJECT) if name.startswith(OBJECT) else None


SAMPLERS = Registry(
    "dataset.sampler",
    {"shuffle": "marl_ray.data.sampling:shuffled", "sequential": "marl_ray.data.sampling:sequential"},
)
"""Functions from the training tasks, the epoch (from 0) and its random stream to the order of the tasks in the epoch.
"""

_TYPE_BY_NAME = {
    "coophumaneval": "coophumaneval",  # before "humaneval", which its name contains
    "humanevalpack": "bug_fix",
    "humaneval": "humaneval",
    "mbpp": "mbpp",
    "toy": "toy",
    "livecodebench": "livecodebench",
    "code_generation_lite": "livecodebench",
    "classeval": "classeval",
    "quixbugs": "bug_fix",
    "bug_fix": "bug_fix",
    "bugfix": "bug_fix",
    "bundled:tags": "tags",
    "bundled:grid": "grid",
    "tldr": "tldr",
    "bundled:posts": "tldr",
    "arxiv": "arxiv",
    "bundled:abstracts": "arxiv",
    "bfcl": "function_calls",
    "bundled:requests": "function_calls",
    "travelplanner": "travel",
    "bundled:trips": "travel",
    "bundled:words": "word_builder",
    "bundled:houses": "house_builder",
}


def infer_type(name: str) -> str:
    """Return the type that a hub id, file name or bundled name contains. Raises UserError if it contains none."""
    if source_name(name) is not None:
        return "prompts"
    for text in (name.replace("\\", "/").rsplit("/", 1)[-1].lower(), name.lower()):
        for part, dataset_type in _TYPE_BY_NAME.items():
            if part in text:
                return dataset_type
    available = ", ".join(DATASETS.entries)
    raise UserError(f"cannot infer dataset.type from the name {name!r}: set it (available: {available})")
