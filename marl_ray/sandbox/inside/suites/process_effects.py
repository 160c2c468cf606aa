"""Analysis of which tests observe or change the program's process or files, and so cannot run in the judge."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping

from .statements import arguments_of, imported_name, of_kind, root_name, walk_all
from .trust_analysis import TrustAnalysis

_OBSERVING = {
    *("assertLogs", "assertNoLogs", "assertWarns", "assertWarnsRegex", "redirect_stdout", "redirect_stderr", "patch"),
    *("catch_warnings", "setlocale", "getcontext", "setcontext", "localcontext", "setrecursionlimit", "seed", "stdin"),
}
"""Functions and attributes of the standard library with an effect on the whole process, or that observe one."""
_MODULES = {
    *("sqlite3", "tempfile", "shutil", "pathlib", "zipfile", "tarfile", "glob", "shelve", "dbm", "logging", "socket"),
    *("subprocess", "threading", "multiprocessing", "signal", "gc", "inspect", "weakref", "pickle", "dataclasses"),
    "os",
}
"""Modules with files, with objects of the process, or with functions that look into objects."""
_PURE_OF_PATH = {"join", "basename", "dirname", "splitext", "split", "normpath"}


_STATEFUL_MODULES = {"logging", "threading", "concurrent", "multiprocessing", "signal", "_thread"}
"""Modules whose objects belong to one process, such as handlers and threads that call the program."""
_SETTERS = {
    *("patch", "monkeypatch", "seed", "setlocale", "chdir", "putenv", "unsetenv", "simplefilter"),
    *("filterwarnings", "settrace", "setswitchinterval", "set_start_method", "set_event_loop_policy"),
}
"""Functions that set something in the whole process, which the program may see."""


class ProcessState:
    """Analysis of assert tests that set something in the process for the program to see: `sys.argv = [...]`,
    `random.seed(1)`, `patch("builtins.input")`, a handler of a logger. They run beside the program.

    `standard`: modules that the tests use without an import (see `stdlib_names`).
    """

    def __init__(self, parts: Iterable[ast.AST], standard: Mapping[str, str]) -> None:
        self._modules = _imported_modules(parts, standard)

    def guest_reason(self, nodes: Iterable[ast.AST]) -> str:
        """Return why these nodes must run beside the program; empty if the judge can evaluate them."""
        for part in walk_all(nodes):
            is_store = isinstance(part, ast.Attribute | ast.Subscript) and not isinstance(part.ctx, ast.Load)
            if is_store and root_name(part) in self._modules:
                return f"a test changes {root_name(part)}"
            if isinstance(part, ast.Name) and self._modules.get(part.id) in _STATEFUL_MODULES:
                return f"a test uses {self._modules[part.id]}, which belongs to the program's process"
            if isinstance(part, ast.Call) and self._sets(part.func):
                return f"a test sets something in the process ({ast.unparse(part.func)})"
        return ""

    def _sets(self, function: ast.expr) -> bool:
        """Return whether this is a setter of a module, or a method of `os.environ` that changes it."""
        root = root_name(function)
        if root not in self._modules:
            return False
        names = [part.attr for part in of_kind(ast.Attribute, ast.walk(function))]
        names.append(root)
        # The first of these is the name of the method.
        if "environ" in names and names[0] in ("update", "setdefault", "pop", "clear", "popitem"):
            return True
        return not _SETTERS.isdisjoint(names)


def _imported_modules(parts: Iterable[ast.AST], standard: Mapping[str, str]) -> dict[str, str]:
    """Return the tests' names of modules and their members, and the top-level module of each."""
    modules = {name: source.partition(":")[0] for name, source in standard.items()}
    for part in parts:
        if isinstance(part, ast.Import):
            for item in part.names:
                modules[imported_name(item)] = item.name.partition(".")[0]
        elif isinstance(part, ast.ImportFrom):
            module = ""
            if part.module and not part.level:
                module = part.module.partition(".")[0]
            modules |= dict.fromkeys(map(imported_name, part.names), module)
    return modules


class ProcessEffects:
    """Analysis of a test module. `standard`: modules that the tests use without an import (see `stdlib_names`)."""

    def __init__(self, parts: Iterable[ast.AST], analysis: TrustAnalysis, standard: Mapping[str, str]) -> None:
        self._analysis = analysis
        self._modules = _imported_modules(parts, standard)

    def guest_reason(self, nodes: Iterable[ast.AST]) -> str:
        """Return why these nodes must run beside the program; empty if the judge can evaluate them."""
        parts = list(walk_all(nodes))
        pure = set(_pure_uses_of_os(parts))
        for part in parts:
            if isinstance(part, ast.Name) and id(part) not in pure:
                module = self._modules.get(part.id)
                if part.id == "open" or module in _MODULES:
                    return f"a test uses {module or part.id}, which belongs to the program's process"
                if module is not None and module not in sys.stdlib_module_names:
                    return f"a test uses the package {module}"
                if not isinstance(part.ctx, ast.Load) and part.id in self._modules:
                    return f"a test replaces {part.id}"
            if isinstance(part, ast.AsyncFunctionDef):
                return "a test is a coroutine"
            if isinstance(part, ast.Name) and part.id.rpartition(".")[2] in _OBSERVING:
                return f"a test uses {part.id}, which concerns the program's process"
            if isinstance(part, ast.Attribute) and part.attr in _OBSERVING and root_name(part) in self._modules:
                return f"a test uses {part.attr}, which concerns the program's process"
            is_store = isinstance(part, ast.Attribute | ast.Subscript) and not isinstance(part.ctx, ast.Load)
            if is_store and root_name(part) in self._modules:
                return f"a test changes {root_name(part)}"
            if isinstance(part, ast.Call) and self._asks_module_of_program(part):
                return f"a test gives results to {root_name(part.func)} of the program"
        return ""

    def _asks_module_of_program(self, call: ast.Call) -> bool:
        """Return whether this is `np.allclose(f(x), y)` with a name `np` that the tests do not define."""
        if not isinstance(call.func, ast.Attribute):
            return False
        root = root_name(call.func)
        is_module = self._analysis.is_remote(root) and not root[:1].isupper()
        return is_module and any(map(self._analysis.from_program, arguments_of(call)))


def _pure_uses_of_os(parts: Iterable[ast.AST]) -> Iterator[int]:
    """Yield the ids of the nodes `os` in `os.sep`, `os.path.join(a, b)` and the like, which open no file."""
    for part in parts:
        if isinstance(part, ast.Attribute):
            base = part.value
            if isinstance(base, ast.Name) and part.attr in ("sep", "linesep"):
                yield id(base)
            elif isinstance(base, ast.Attribute) and base.attr == "path" and part.attr in _PURE_OF_PATH:
                yield id(base.value)
