"""Datasets: bundled, in local files, or on the hub. Dataset types convert their rows to tasks."""

from __future__ import annotations

from marl_ray.core.errors import UserError
from marl_ray.registry import IN_MEMORY, Registry, types_by_name

DATASETS = Registry(
    "dataset.type",
    {
        "humaneval": "marl_ray.data.convert:HUMANEVAL",
        "coophumaneval": "marl_ray.data.convert:COOPHUMANEVAL",
        "mbpp": "marl_ray.data.convert:MBPP",
        "toy": "marl_ray.data.convert:TOY",
        "prompts": "marl_ray.data.prompts:PROMPTS",
    },
    member="task",
)
SOURCES = Registry("dataset.name", {}, member="splits")
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

_TYPES_BY_NAME = {
    "coophumaneval": "coophumaneval",
    "humaneval": "humaneval",
    "mbpp": "mbpp",
    "toy": "toy",
}
"""dataset.type by a part of the names of its datasets."""


def infer_type(name: str) -> str:
    """Return the type that a hub id, file name or bundled name contains. Raises UserError if it contains none."""
    if source_name(name) is not None:
        return "prompts"
    types = _TYPES_BY_NAME | types_by_name()
    # A longer part decides before a shorter one that it contains, such as coophumaneval before humaneval.
    parts = sorted(types, key=len, reverse=True)
    for text in (name.replace("\\", "/").rsplit("/", 1)[-1].lower(), name.lower()):
        for part in parts:
            if part in text:
                return types[part]
    available = ", ".join(DATASETS.entries)
    raise UserError(f"cannot infer dataset.type from the name {name!r}: set it (available: {available})")
