"""Names for the objects that a Python program gives as settings: environments, data sets and other plug-ins.

A config holds names only. A class or function of a module gets the name `module:Attr`, which other programs can import.
Any other object gets a name that begins with `in_memory:` and exists for one call (`marl_ray.registry.in_memory`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from os import PathLike, fspath
from typing import Any

from marl_ray.core.errors import UserError
from marl_ray.environments.base import BaseEnvironment
from marl_ray.environments.reward import RewardEnvironment, fingerprint_of_rows, rows_of
from marl_ray.registry import IN_MEMORY, MODULE_ATTRIBUTE


@dataclass(frozen=True, slots=True)
class PythonRows:
    """A data set in memory: rows by split."""

    splits: Mapping[str, Sequence[Mapping[str, Any]]]


class ObjectNames:
    """The settings of a call with names in place of objects. `objects` maps the names `in_memory:...` to the objects.

    An environment with prompts also sets `dataset`, and an environment with agents `num_agents`, unless they are given.
    """

    def __init__(self, settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
        self.objects: dict[str, Any] = {}
        self.settings = dict(settings)
        environment = settings.get("environment", overrides.get("environment"))
        if isinstance(environment, RewardEnvironment):
            if environment.splits:
                self.settings.setdefault("dataset", environment.splits)
            if not {"agents", "num_agents"} & set(settings):
                self.settings["num_agents"] = environment.num_agents
        if "dataset" in self.settings:
            self.settings["dataset"] = self._dataset(self.settings["dataset"])
        self.settings = self._plain(self.settings)
        self.overrides: dict[str, Any] = self._plain(overrides)

    def _dataset(self, given: Any) -> Any:
        """Return the section `dataset` of a data set: its rows, its rows by split, or a section that names it."""
        if _is_section(given) and "name" in given and not isinstance(given["name"], str | PathLike):
            section = dict(given)
            rows = section.pop("name")
            return {**self._dataset(rows), **section}
        if given is None or isinstance(given, str | PathLike) or _is_section(given):
            return given
        by_split = given if isinstance(given, Mapping) else {"train": given}
        splits = {name: rows_of(rows) for name, rows in by_split.items()}
        name = f"{IN_MEMORY}prompts_{fingerprint_of_rows(splits)}"
        self.objects[name] = PythonRows(splits)
        section = {"name": name}
        if "eval" in splits:
            section["eval_split"] = "eval"
        return section

    def _plain(self, value: Any) -> Any:
        """Return the value as a YAML file would hold it, with names for objects."""
        if isinstance(value, Mapping):
            return {key: self._plain(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._plain(inner) for inner in value]
        if isinstance(value, PathLike):
            return fspath(value)
        if value is None or isinstance(value, str | bool | int | float):
            return value
        if isinstance(value, Number) and hasattr(value, "item"):  # a NumPy scalar
            return value.item()
        return self._named(value)

    def _named(self, value: Any) -> str:
        if isinstance(value, BaseEnvironment) and not isinstance(value, RewardEnvironment):
            name = type(value).__name__
            raise UserError(
                f"environment is an instance of {name}: give the class {name}, from which a run makes its own"
            )
        module = getattr(value, "__module__", "")
        attribute = getattr(value, "__qualname__", "")
        name = f"{module}:{attribute}"
        # Another program cannot import `__main__`, which is the script that runs.
        is_importable = module != "__main__" and getattr(sys.modules.get(module), attribute, None) is value
        if is_importable and MODULE_ATTRIBUTE.fullmatch(name):
            return name
        short = re.sub(r"\W", "", attribute.rpartition(".")[2] or type(value).__name__)
        number = 0  # of other objects whose names begin alike
        for key, other in self.objects.items():
            if key.startswith(f"{IN_MEMORY}{short}") and other is not value:
                number += 1
        name = f"{IN_MEMORY}{short}{number or ''}"
        self.objects[name] = value
        return name


def _is_section(value: Any) -> bool:
    """Return whether a mapping is the section `dataset`, and not rows by split."""
    if not isinstance(value, Mapping):
        return False
    # A `datasets.Dataset` has column names.
    return any(not isinstance(rows, list | tuple) and not hasattr(rows, "column_names") for rows in value.values())
