"""Plug-ins by name: the package's own, or anybody's as `module:Attr`."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Mapping
from typing import Any

from marl_ray.core.errors import UserError

OWN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""The form of `module:Attr`."""


class Registry:
    """What is known by name of one kind. Entries are `module:Attr` too, and are imported when they are asked for.

    Example:
        >>> Registry("estimator", {"magrpo": "marl_ray.credit.estimators:magrpo"}).get("magrpo")
    """

    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self.entries = entries

    def check(self, name: str) -> None:
        """The name is known, or has the form `module:Attr`; imports nothing. Raises UserError."""
        if name in self.entries or OWN.fullmatch(name):
            return
        near = difflib.get_close_matches(name, self.entries, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(self.entries)}"
        raise UserError(f"unknown {self.kind} {name!r}: {hint} (or module:Attr for one of your own)")

    def get(self, name: str) -> Any:
        """What the name stands for. Raises UserError where there is none, or where its module cannot be imported."""
        self.check(name)
        module, _, attribute = self.entries.get(name, name).partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise UserError(f"{self.kind} {name}: {error}") from None
