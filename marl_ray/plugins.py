"""Plug-ins by name: the package's own, or a user's as `module:Attr`.

A user's module is imported from the Python path (installed, or on PYTHONPATH) or from the current folder, which console
scripts do not have on their path. Only the driver imports plug-ins; on a cluster its working directory is that of the
job. If a KL term is part of the rewards, learners import the estimator too. docs/how-to/extend.md has an example of
every kind.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from marl_ray.core.errors import UserError

IN_MEMORY = "in_memory:"
"""Prefix of the names of objects that a Python program passes to a run (`in_memory`)."""
MODULE_ATTRIBUTE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""Form of `module:Attr`."""


_objects: ContextVar[Mapping[str, Any]] = ContextVar("objects", default=MappingProxyType({}))


@contextmanager
def in_memory(objects: Mapping[str, Any]) -> Iterator[None]:
    """Let registries find these objects by their names, which begin with IN_MEMORY, within the block."""
    token = _objects.set({**_objects.get(), **objects})
    try:
        yield
    finally:
        _objects.reset(token)


class Registry:
    """The plug-ins of one kind by name. Entries are `module:Attr` too, and are imported on first use.

    `kind` is the setting that selects the plug-in, for messages. `needs` is an attribute that every plug-in of this
    kind must have. Where plug-ins are functions, classes with `method` are plug-ins too.

    Example:
        >>> entries = {"opo": "marl_ray.credit.estimators.opo:Opo"}
        >>> Registry("estimator", entries, method="advantages").get("opo").__name__
        'Opo'
    """

    def __init__(self, kind: str, entries: Mapping[str, str], needs: str = "__call__", method: str = "") -> None:
        self.kind = kind
        self.entries = entries
        self.needs = needs
        self.method = method

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
        module_name, _, attribute = self.entries.get(name, name).partition(":")
        if name not in self.entries and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # last, so that installed modules take precedence
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise UserError(f"{self.kind} {name}: {error}") from None
        except (Exception, SystemExit) as error:
            raise UserError(f"{self.kind} {name}: {_import_error(error)}") from error
        if not hasattr(module, attribute):
            raise UserError(f"{self.kind} {name}: module {module_name} has no {attribute}")
        return self._checked(name, getattr(module, attribute))

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
        if not hasattr(plugin, self.needs):
            raise UserError(f"{name} is not a plug-in for {self.kind}: it has no {self.needs} (docs/how-to/extend.md)")
        is_known_class = self.method != "" and hasattr(plugin, self.method)
        if self.needs == "__call__" and isinstance(plugin, type) and not is_known_class:
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
