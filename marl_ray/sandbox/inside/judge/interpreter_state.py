"""Isolation of the judge's interpreter state between the tests of one problem and the next."""

from __future__ import annotations

import decimal
import gc
import hashlib
import locale
import os
import random
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..suites.suite import Suite
from .scheduling import TICK_S


@contextmanager
def preserved_state(suite: Suite) -> Iterator[None]:
    """Restore the interpreter state after the body, which runs the tests of one problem.

    The random seed depends on the tests alone, which no program knows; a program would know the numbers of a seed that
    it shares. Modules are restored only if the tests' text says that they may be changed, since that takes 1 ms.
    """
    depth, digits, hook = sys.getrecursionlimit(), sys.get_int_max_str_digits(), sys.excepthook
    filters, alarm = warnings.filters[:], signal.getsignal(signal.SIGALRM)
    collecting = gc.isenabled()
    context = decimal.getcontext().copy()
    category = locale.setlocale(locale.LC_ALL)
    folder = os.getcwd() if suite.patches else ""
    modules = _copy_modules() if suite.patches else []
    if suite.uses_random:
        random.seed(hashlib.sha256("\0".join(case.source for case in suite.cases).encode("utf-8", "replace")).digest())
    try:
        yield
    finally:
        _restore(modules)
        if folder:
            os.chdir(folder)
        if signal.getsignal(signal.SIGALRM) is not alarm:  # the judge's own timer
            signal.signal(signal.SIGALRM, alarm)
            signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
        if collecting:
            gc.enable()
        sys.setrecursionlimit(depth)
        sys.set_int_max_str_digits(digits)
        sys.excepthook = hook
        warnings.filters[:] = filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]
        decimal.setcontext(context)
        if locale.setlocale(locale.LC_ALL) != category:
            locale.setlocale(locale.LC_ALL, category)


def _copy_modules() -> list[tuple[Any, dict[str, Any]]]:
    """Return copies of what tests can patch: names in modules, the environment, two lists. (No class attributes.)"""
    copies: list[tuple[Any, dict[str, Any]]] = [(sys.modules, dict(sys.modules)), (os.environ, dict(os.environ))]
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict:
            copies.append((names, dict(names)))
    copies += [(values, list(values)) for values in (sys.path, sys.argv)]  # type: ignore[misc]
    return copies


def _restore(modules: list[tuple[Any, Any]]) -> None:
    for names, before in modules:
        if isinstance(before, list):
            names[:] = before
        elif names is os.environ or dict(names) != before:
            names.update(before)  # never empty in between: the timer's signal handler uses these names
            for name in names.keys() - before.keys():
                del names[name]
