"""Plug-ins and their names: the package's own, a user's as `module:Attr`, and objects of a Python program.

`PlugIn` is the door for everything optional. Each folder of `marl_ray/plugins/` and each installed package with an
entry point of the group `marl_ray.plugins` has one; the setting `plugins` names further modules. A plug-in adds names
to registries, sections to the config, commands to `marl-ray`, and bundled rows and models. Reading the tables imports
none of the code behind the names.

A user's module is imported from the Python path (installed, or on PYTHONPATH) or from the current folder, which console
scripts do not have on their path; on a cluster the working directory is that of the job. The driver imports all
plug-ins. Learners import losses, critics and optimizers, and the estimator if a KL term is part of the rewards.
docs/how-to/extend.md has an example of every kind.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from marl_ray.core.errors import UserError

IN_MEMORY = "in_memory:"
"""Prefix of the names of objects that a Python program passes to a run (`in_memory`)."""
MODULE_ATTRIBUTE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""Form of `module:Attr`."""
FOLDER = "marl_ray.plugins"
"""Package whose folders are the plug-ins that come with marl_ray, and the group of entry points of others."""


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command of `marl-ray`: the module whose `main(arguments)` returns the exit code, and a line for `--help`."""

    module: str
    summary: str


@dataclass(frozen=True, kw_only=True)
class PlugIn:
    """Everything that a plug-in adds. Values `module:Attr` are imported on first use.

    Example:
        >>> PlugIn(names={"environment": {"chess": "chess_team:Chess"}}, sections={"chess": "chess_team:Options"})
        PlugIn(names={'environment': {'chess': 'chess_team:Chess'}}, sections={'chess': 'chess_team:Options'})
    """

    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """`module:Attr` by name, by the kind of the registry: environment, dataset.type, estimator, output.sinks, ..."""
    sections: Mapping[str, str] = field(default_factory=dict)
    """Sections of the config: `module:Attr` of a section's class by key."""
    commands: Mapping[str, ShellCommand] = field(default_factory=dict)
    """Commands of `marl-ray` by name."""
    rows: Mapping[str, Path] = field(default_factory=dict)
    """Files of bundled datasets, whose rows have the field `split`, by dataset.name."""
    types_by_name: Mapping[str, str] = field(default_factory=dict)
    """dataset.type by a part of the names of its datasets, in lower case."""
    models: Mapping[str, Path] = field(default_factory=dict)
    """Folders of bundled models by model.name."""
    adapt: str = ""
    """`module:Attr` of a function that adapts the settings of a run before they are checked (`marl_ray.config`)."""

    def __repr__(self) -> str:
        given = [f"{name}={value!r}" for name, value in vars(self).items() if value]
        return f"PlugIn({', '.join(given)})"


_named: list[PlugIn] = []
"""Plug-ins of the setting `plugins`, in the order in which they were loaded."""


def plug_ins() -> list[PlugIn]:
    """Return the plug-ins of this package, of installed packages, and of the setting `plugins`."""
    return [*_installed(), *_named]


def load_plug_ins(modules: Iterable[str]) -> None:
    """Import modules that have a `PLUGIN`, and add it. Raises UserError."""
    for name in modules:
        plug_in = _plug_in(name, f"plugins: {name}")
        if plug_in not in plug_ins():
            _named.append(plug_in)


@functools.cache
def _installed() -> tuple[PlugIn, ...]:
    found = []
    if importlib.util.find_spec(FOLDER) is not None:
        package = importlib.import_module(FOLDER)
        for module in pkgutil.iter_modules(package.__path__, f"{FOLDER}."):
            found.append(_plug_in(module.name, module.name))
    for entry in sorted(importlib.metadata.entry_points(group=FOLDER)):
        found.append(_plug_in(entry.module, f"plug-in {entry.name} of an installed package"))
    return tuple(found)


def _plug_in(module_name: str, subject: str) -> PlugIn:
    plug_in = getattr(import_module(module_name, subject), "PLUGIN", None)
    if not isinstance(plug_in, PlugIn):
        raise UserError(f"{subject}: the module has no PLUGIN of type marl_ray.registry.PlugIn")
    return plug_in


def import_module(name: str, subject: str) -> Any:
    """Import a module of a user, from the Python path or the current folder. Raises UserError that names `subject`."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that installed modules take precedence
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"{subject}: {error}") from None
    except (Exception, SystemExit) as error:
        raise UserError(f"{subject}: {_import_error(error)}") from error


def sections() -> dict[str, str]:
    """Return the sections of the config that plug-ins add: `module:Attr` of the class by key."""
    return _merged("sections")


def commands() -> dict[str, ShellCommand]:
    """Return the commands that plug-ins add, by name."""
    return _merged("commands")


def bundled_rows() -> dict[str, Path]:
    """Return the files of the datasets of plug-ins by dataset.name."""
    return _merged("rows")


def bundled_models() -> dict[str, Path]:
    """Return the folders of the models of plug-ins by model.name."""
    return _merged("models")


def types_by_name() -> dict[str, str]:
    """Return dataset.type by a part of a dataset's name, for the types of plug-ins."""
    return _merged("types_by_name")


def _merged(table: str) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for plug_in in plug_ins():
        merged.update(getattr(plug_in, table))
    return merged


def attribute(target: str, subject: str) -> Any:
    """Import and return `module:Attr`. Raises UserError that names `subject`."""
    module_name, _, name = target.partition(":")
    module = import_module(module_name, subject)
    if not hasattr(module, name):
        raise UserError(f"{subject}: module {module_name} has no {name}")
    return getattr(module, name)


_objects: ContextVar[Mapping[str, Any]] = ContextVar("objects", default=MappingProxyType({}))


@contextmanager
def in_memory(objects: Mapping[str, Any]) -> Iterator[None]:
    """Let registries find these objects by their names, which begin with IN_MEMORY, within the block."""
    token = _objects.set({**_objects.get(), **objects})
    try:
        yield
    finally:
        _objects.reset(token)


_kinds: set[str] = set()
"""Kinds of all registries that have been imported."""


def check_kinds() -> None:
    """Raise UserError if a plug-in has names of a kind that no registry has. Call it when all registries exist."""
    for plug_in in plug_ins():
        for kind, names in plug_in.names.items():
            if kind not in _kinds:
                near = difflib.get_close_matches(kind, _kinds, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(_kinds))}"
                raise UserError(f"PlugIn.names of {', '.join(names)}: there is no kind {kind!r}: {hint}")


class Registry:
    """The choices of one kind by name. Entries are `module:Attr`, and are imported on first use.

    `kind` is the setting that selects a choice: plug-ins add names to the registry of a kind. `member` is an attribute
    that every choice of this kind must have. Where choices are functions, classes with `method` are choices too.

    Example:
        >>> entries = {"opo": "marl_ray.credit.estimators.opo:Opo"}
        >>> Registry("estimator", entries, method="advantages").get("opo").__name__
        'Opo'
    """

    def __init__(self, kind: str, entries: Mapping[str, str], member: str = "__call__", method: str = "") -> None:
        _kinds.add(kind)
        self.kind = kind
        self.core = entries
        self.member = member
        self.method = method

    @property
    def entries(self) -> dict[str, str]:
        """`module:Attr` by name, with the names that plug-ins add."""
        entries = dict(self.core)
        for plug_in in plug_ins():
            entries.update(plug_in.names.get(self.kind, {}))
        return entries

    def check(self, name: str) -> None:
        """Raise UserError unless the name is known or has the form `module:Attr`. Imports nothing."""
        if name in self.entries or MODULE_ATTRIBUTE.fullmatch(name):
            return
        known = ", ".join(self.entries)
        near = difflib.get_close_matches(name, self.entries, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {known}"
        raise UserError(f"unknown {self.kind} {name!r}: {hint} (or module:Attr of your own)")

    def get(self, name: str) -> Any:
        """Import and return the plug-in.

        Raises UserError if the name is unknown, if importing the module raises any exception, or if the object is not a
        plug-in of this kind.
        """
        self.check(name)
        if name.startswith(IN_MEMORY):
            return self._checked(name, self._in_memory(name))
        return self._checked(name, attribute(self.entries.get(name, name), f"{self.kind} {name}"))

    def _in_memory(self, name: str) -> Any:
        if name not in _objects.get():
            key = self.kind.replace(".", "_")
            raise UserError(
                f"{self.kind} {name} is an object of the Python program that started the run: pass it again, as in "
                f"mr.train(resume=..., {key}=...) or mr.evaluate(..., {key}=...)"
            )
        return _objects.get()[name]

    def _checked(self, name: str, plugin: Any) -> Any:
        """Return the plug-in. Raises UserError if it is not of this kind."""
        if not hasattr(plugin, self.member):
            raise UserError(f"{name} is not a plug-in for {self.kind}: it has no {self.member} (docs/how-to/extend.md)")
        is_known_class = self.method != "" and hasattr(plugin, self.method)
        if self.member == "__call__" and isinstance(plugin, type) and not is_known_class:
            # A call would only create an instance.
            raise UserError(f"{self.kind} {name} is a class: name a function or a callable object")
        if inspect.isabstract(plugin):
            missing = ", ".join(sorted(plugin.__abstractmethods__))
            raise UserError(f"{self.kind} {name} is abstract: it does not define {missing} (docs/how-to/extend.md)")
        return plugin


def _import_error(error: BaseException) -> str:
    """Return the exception of an import and its position in one line."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
