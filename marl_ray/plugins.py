"""Plug-ins by name: the package's own, or anybody's as `module:Attr`.

The module of an own one is found as Python finds any (installed, or on PYTHONPATH), or in the current folder, which a
console script would not look into. The process that a command starts imports plug-ins; on a cluster that is the
driver, whose folder is the job's. Where KL is part of rewards, learners import an estimator too. docs/how-to/extend.md has
an example of each kind.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from marl_ray.core.errors import UserError

OWN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""The form of `module:Attr`."""


class Registry:
    """What is known by name of one kind. Entries are `module:Attr` too, and are imported when they are asked for.

    `kind` is how a config names it; `needs` is an attribute that every plug-in of the kind has.

    Example:
        >>> Registry("estimator", {"magrpo": "marl_ray.credit.estimators:magrpo"}).get("magrpo")
    """

    def __init__(self, kind: str, entries: Mapping[str, str], needs: str = "__call__") -> None:
        self.kind = kind
        self.entries = entries
        self.needs = needs

    def check(self, name: str) -> None:
        """The name is known, or has the form `module:Attr`; imports nothing. Raises UserError."""
        if name in self.entries or OWN.fullmatch(name):
            return
        known = ", ".join(self.entries)
        near = difflib.get_close_matches(name, self.entries, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {known}"
        raise UserError(f"unknown {self.kind} {name!r}: {hint} (or module:Attr for one of your own)")

    def get(self, name: str) -> Any:
        """What the name stands for.

        Raises UserError where there is none, where its module cannot be imported, whatever that raises, and where it is
        of another kind.
        """
        self.check(name)
        module, _, attribute = self.entries.get(name, name).partition(":")
        if name not in self.entries and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # last: what is installed wins
        try:
            found = importlib.import_module(module)
        except ImportError as error:
            raise UserError(f"{self.kind} {name}: {error}") from None
        except (Exception, SystemExit) as error:
            raise UserError(f"{self.kind} {name}: {_fault(error)}") from error
        if not hasattr(found, attribute):
            raise UserError(f"{self.kind} {name}: module {module} has no {attribute}")
        plugin = getattr(found, attribute)
        if not hasattr(plugin, self.needs):
            raise UserError(f"{self.kind} {name} is none: it has no {self.needs} (docs/how-to/extend.md)")
        if self.needs == "__call__" and isinstance(plugin, type):  # calling it would only make an object
            raise UserError(f"{self.kind} {name} is a class: name a function, or an object that can be called")
        if inspect.isabstract(plugin):
            left = ", ".join(sorted(plugin.__abstractmethods__))
            raise UserError(f"{self.kind} {name} cannot be used: it has no {left} of its own (docs/how-to/extend.md)")
        return plugin


def _fault(error: BaseException) -> str:
    """What a module raised when it was imported, and at which line."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
