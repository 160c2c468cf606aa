"""Reading equal texts once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class Once:
    """Calls a function once for equal arguments, as long as what it gave is alive.

    In joint mode `cross` a response is in many joint actions of its node, whose attempts live at the same time; the
    problem's text is in all of them. When a node is done nothing of it is kept, so there is no size to choose.
    """

    def __init__(self) -> None:
        self._found: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()

    def __call__(self, read: Callable[..., T], *arguments: Any) -> T:
        """`read(*arguments)`, which has to be a pure function whose results can be weakly referred to."""
        found = self._found.get((read, *arguments))
        if found is None:
            found = self._found[read, *arguments] = read(*arguments)
        return found
