"""Analysis of which tests may run text or bytes of the program as code.

`eval(f(1))`, `pickle.loads(f(1))` or `getattr(sys.modules[f(1)], ...)` would run text of the program in the process
that decides. Such tests run in the guest, where their passes are untrusted.

The mention of a sink decides, whatever its form (`e = eval`, `map(eval, ...)`, `from builtins import eval as e`, a
function of the tests that calls it): only `eval` of a constant without names, such as `eval("1 + 1")`, is harmless.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Sequence

from .statements import (
    arguments_of,
    bound_names,
    imported_name,
    last_name,
    name_of,
    names_in,
    of_kind,
    root_name,
    spread,
    syntax_tree,
    walk_all,
)

_BUILTINS = frozenset(
    ("eval", "exec", "compile", "__import__", "globals", "locals", "vars", "breakpoint", "__builtins__")
)
"""Builtins that run text, or that look up names by text."""
_MODULES = frozenset(
    (
        *(
            "builtins",
            "code",
            "codeop",
            "importlib",
            "imp",
            "pkgutil",
            "runpy",
            "timeit",
            "zipimport",
            "logging.config",
        ),
        *("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "jsonpickle", "marshal", "shelve", "yaml"),
        *("bdb", "cProfile", "cffi", "ctypes", "doctest", "gc", "multiprocessing", "pdb", "profile", "subprocess"),
        *("trace", "rlcompleter", "pydoc"),
    )
)
"""Modules that run text or bytes as code, start processes, or reach any object of a process."""
_ATTRIBUTES = frozenset(
    (
        *("__globals__", "__builtins__", "__subclasses__", "__import__", "f_globals", "f_locals", "f_back", "modules"),
        *("settrace", "setprofile", "_getframe", "_current_frames", "FunctionType", "CodeType", "__self__", "bltns"),
        *("f_builtins", "gi_frame", "cr_frame", "ag_frame", "tb_frame", "__getattribute__", "currentframe"),
    )
)
"""Attributes that reach any object of a process."""
_USUAL_WORDS = frozenset(("code", "trace", "profile", "imp"))
"""Names of modules that are usual names of attributes, too."""
_BY_MODULE = {"numpy": ("load",), "pandas": ("eval", "query", "read_pickle")}
"""Functions of other modules that run text or bytes as code."""
_OF_DATA_FRAMES = ("eval", "query")
"""Functions that are methods of pandas' data frames, too."""
_WITH_TEXT = frozenset(
    (
        *("getattr", "setattr", "delattr", "attrgetter", "methodcaller", "import_module", "patch", "dictConfig"),
        *("system", "popen", "execv", "execve", "execvp", "execl", "execlp", "spawnl", "spawnv", "kill", "killpg"),
        *("get_type_hints", "ForwardRef", "make_dataclass", "loadTestsFromName", "loadTestsFromNames"),
    )
)
"""Functions that a text or number of the program turns into a sink."""
_KNOWN_PACKAGES = frozenset(("numpy", "pandas", "scipy", "pytest"))
"""Packages outside the standard library that run no text as code, except for the functions in `_BY_MODULE`. Others may:
`sympy.sympify` evaluates its argument."""


class SinkAnalysis:
    """Analysis of all statements of a problem's tests, including the prompt's definitions that run beside them.

    `from_program` returns whether a value may come from the program. `entry_point` is no sink, whatever its name.
    """

    def __init__(
        self, statements: Sequence[ast.stmt], from_program: Callable[[ast.AST], bool], entry_point: str
    ) -> None:
        self._from_program = from_program
        self._names = set(_BUILTINS - {entry_point})
        """Names of sinks."""
        self._unsafe: set[str] = set()
        """Names that the tests bind to a sink, or to something that uses one."""
        self._functions: dict[str, tuple[str, ...]] = {}
        """Sinks by the name of a module that has other members, too."""
        self._has_all_names = False
        """Whether the tests import all names of a module with sinks."""
        self._has_data_frames = False
        """Whether the tests import anything from pandas."""
        self._imported: set[str] = set()
        """Names that the tests import from packages that are not known."""
        for part in walk_all(statements):
            self._add_imports(part)
        uses = [(_bound_anywhere(node), names_in(node)) for node in statements]
        self._packages = spread(self._imported, uses)
        """Names from packages that are not known, and names of values and functions that use these."""
        # A function that calls `eval` is a sink too, and so is a function that calls that function.
        known = -1
        while known < len(self._unsafe):
            known = len(self._unsafe)
            for node in statements:
                self._unsafe |= self._bound_with_a_sink(node)

    def reason(self, statements: Iterable[ast.AST]) -> str:
        """Return why these statements must run in the guest; empty if they reach no sink."""
        if self._has_all_names:
            return "a test imports all names of a module that runs text as code"
        nodes = list(statements)
        harmless = {part.func for part in of_kind(ast.Call, walk_all(nodes)) if self._is_constant_call(part)}
        for part in walk_all(nodes):
            sink = self._mentioned(part)
            if sink and part not in harmless:
                return f"a test may run text of the program as code ({sink})"
            if isinstance(part, ast.Call):
                name = last_name(part.func)
                if name in _WITH_TEXT and self._is_given_text(part):
                    return f"a test gives {name} a name that the program may choose"
                if package := self._package_of(part):
                    return f"a test passes a value of the program to {package}, which may run it as code"
        return ""

    def _package_of(self, call: ast.Call) -> str:
        """Return a name from a package that is not known, if a call brings it together with a value of the program."""
        if not self._packages:
            return ""
        arguments = arguments_of(call)
        names = names_in(call.func, *arguments) & self._packages
        if not any(map(self._from_program, arguments)):
            return ""
        return min(names, default="")

    def _add_imports(self, part: ast.AST) -> None:
        if isinstance(part, ast.Import):
            for item in part.names:
                self._add_module(item.name, imported_name(item))
        elif isinstance(part, ast.ImportFrom):
            module = part.module or ""
            root = _root(module)
            self._has_data_frames |= root == "pandas"
            if module and not _is_known(module):
                self._imported.update(map(imported_name, part.names))
            for item in part.names:
                is_member = f"{module}.{item.name}" in _MODULES or item.name in _ATTRIBUTES
                is_by_module = item.name in _BY_MODULE.get(root, ())
                if _is_sink_module(module) and item.name == "*":
                    self._has_all_names = True
                elif _is_sink_module(module) or is_member or is_by_module:
                    self._names.add(imported_name(item))

    def _add_module(self, module: str, name: str) -> None:
        root = _root(module)
        self._has_data_frames |= root == "pandas"
        if _is_sink_module(module):
            self._names.add(name)
        elif root in _BY_MODULE:
            self._functions[name] = _BY_MODULE[root]
        elif not _is_known(module):
            self._imported.add(name)

    def _bound_with_a_sink(self, node: ast.stmt) -> set[str]:
        """Return the names that a statement binds, if it mentions a sink in a way that is not harmless."""
        if isinstance(node, ast.Import | ast.ImportFrom) or not self.reason([node]):
            return set()
        return _bound_anywhere(node)

    def _mentioned(self, part: ast.AST) -> str:
        """Return the sink that a node itself names, without its child nodes; empty if there is none."""
        if isinstance(part, ast.Name) and (part.id in self._names or part.id in self._unsafe):
            return part.id
        if not isinstance(part, ast.Attribute):
            return ""
        if part.attr in _ATTRIBUTES or f"self.{part.attr}" in self._unsafe:
            return part.attr
        is_module = part.attr in _MODULES and part.attr not in _USUAL_WORDS
        if is_module and not self._from_program(part.value):  # `dataclasses.builtins`
            return part.attr
        if part.attr in self._functions.get(root_name(part.value), ()):
            return part.attr
        is_of_data_frame = self._has_data_frames and part.attr in _OF_DATA_FRAMES
        if is_of_data_frame and not self._from_program(part.value):
            return part.attr
        return ""

    def _is_constant_call(self, call: ast.Call) -> bool:
        """Return whether this is a call like `eval("1 + 1")`."""
        if name_of(call.func) != "eval" or len(call.args) != 1 or call.keywords:
            return False
        text = call.args[0]
        if not isinstance(text, ast.Constant):
            return False
        try:
            names = names_in(syntax_tree(str(text.value)))
        except (SyntaxError, ValueError):
            return False
        return not names and "eval" not in self._unsafe

    def _is_given_text(self, call: ast.Call) -> bool:
        """Return whether an argument other than the object itself may come from the program."""
        arguments = arguments_of(call)
        if last_name(call.func) in ("getattr", "setattr", "delattr"):
            arguments = arguments[1:2]  # the value that is set is no name
        return any(map(self._from_program, arguments))


def _bound_anywhere(node: ast.stmt) -> set[str]:
    """Return the names that a statement binds, and the names of the functions and classes inside."""
    names = set(bound_names(node))
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.ClassDef):
            names.add(part.name)
    return names


def _root(module: str) -> str:
    return module.partition(".")[0]


def _is_known(module: str) -> bool:
    return _root(module) in sys.stdlib_module_names or _root(module) in _KNOWN_PACKAGES


def _is_sink_module(module: str) -> bool:
    return module in _MODULES or _root(module) in _MODULES
