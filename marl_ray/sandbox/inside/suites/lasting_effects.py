"""Analysis of which tests leave nothing behind in the process that evaluates them, from the tests' text alone.

The judge evaluates such tests itself, for one problem after another. All other tests get a process of their own, which
costs more than a short program. The rules list the syntax and names that are allowed: a statement, a builtin, a module
or an attribute outside the lists may do anything, such as `eval`, `setattr(Counter, ...)`, a patched module, a thread,
or a finaliser that runs during the tests of a later problem.

Tests may be hostile too, and Python reaches every module from any function. So no attribute may begin with an
underscore or lead to frames and code (`gi_frame`), and no function is allowed that takes the name of an attribute as a
string (`getattr`, `operator.attrgetter`, `string.Formatter`, `functools.wraps`).
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Mapping, Sequence, Set

from .statements import imported_name, name_of, of_kind, walk_all

_STATEMENTS = (
    *(ast.FunctionDef, ast.Return, ast.Delete, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If),
    *(ast.Raise, ast.Try, ast.Assert, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Expr, ast.Pass),
    *(ast.Break, ast.Continue),
)
"""No class but unittest's (its `__del__` could run later), and no `with` but unittest's (it could be anything)."""
_SUSPENDED = (ast.Yield, ast.YieldFrom, ast.Await)
"""A suspended function runs its `finally` when it is deleted, which may be later."""
_PARTS = (
    *(ast.expr, ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop, ast.comprehension),
    *(ast.ExceptHandler, ast.arguments, ast.arg, ast.keyword, ast.alias, ast.withitem),
)
_FRAMES = ("gi_", "cr_", "ag_", "tb_", "f_", "co_")
"""Prefixes of the attributes of generators, coroutines, tracebacks, frames and code objects."""
_OWNERS = frozenset(("self", "cls"))
_CONTEXTS = {"assertRaises", "assertRaisesRegex", "subTest"}
"""Methods of unittest's classes that make contexts."""
_PROCESS_WIDE = {"assertLogs", "assertNoLogs", "assertWarns", "assertWarnsRegex", "register"}
"""Methods that change loggers, warnings, or the subclasses of an abstract class such as `Fraction`."""

_FUNCTIONS = {
    *("abs", "all", "any", "ascii", "bin", "callable", "chr", "divmod", "enumerate", "filter", "format", "hasattr"),
    *("hash", "hex", "id", "isinstance", "issubclass", "iter", "len", "map", "max", "min", "next", "oct", "ord", "pow"),
    *("print", "range", "repr", "reversed", "round", "slice", "sorted", "sum", "zip"),
}
_TYPES = {
    *("bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "object", "set", "str"),
    "tuple",
}
_EXCEPTIONS = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)}
_HARMLESS_BUILTINS = frozenset(_FUNCTIONS | _TYPES | _EXCEPTIONS | {"NotImplemented", "Ellipsis"})
_OTHER_BUILTINS = frozenset({*dir(builtins), "exit", "quit"}) - _HARMLESS_BUILTINS
_MEMBERS: Mapping[str, Set[str]] = {
    "__future__": {"annotations"},
    "bisect": {"bisect", "bisect_left", "bisect_right", "insort", "insort_left", "insort_right"},
    "collections": {"Counter", "OrderedDict", "defaultdict", "deque"},
    "copy": {"copy", "deepcopy"},
    "datetime": {"date", "datetime", "time", "timedelta"},
    "fractions": {"Fraction"},
    "functools": {"cmp_to_key", "partial", "reduce"},
    "heapq": {"heapify", "heappop", "heappush", "heappushpop", "merge", "nlargest", "nsmallest"},
    "itertools": {
        *("accumulate", "chain", "combinations", "combinations_with_replacement", "count", "cycle", "groupby"),
        *("islice", "pairwise", "permutations", "product", "repeat", "starmap", "takewhile", "zip_longest"),
    },
    "math": {
        *("acos", "asin", "atan", "atan2", "ceil", "comb", "cos", "degrees", "dist", "e", "exp", "fabs", "factorial"),
        *("floor", "fsum", "gcd", "hypot", "inf", "isclose", "isfinite", "isinf", "isnan", "isqrt", "lcm", "log"),
        *("log10", "log2", "nan", "perm", "pi", "pow", "prod", "radians", "sin", "sqrt", "tan", "tau", "trunc"),
    },
    "unittest": set(),  # and the base class of a test class
    "string": {"ascii_letters", "ascii_lowercase", "ascii_uppercase", "digits", "punctuation", "whitespace"},
}
"""Functions, classes and constants without state, and without a way to other objects."""


def leaves_nothing(statements: Iterable[ast.AST], remote: Set[str], standard: Mapping[str, str]) -> bool:
    """Return whether nothing remains of these statements in their process.

    `remote` are names of the program, `standard` names of the standard library without an import (`stdlib_names`).
    """
    for source in standard.values():
        module, _, member = source.partition(":")
        if module not in _MEMBERS or (member and member not in _MEMBERS[module]):
            return False
    parts = list(walk_all(statements))
    names = _Names(parts, remote, standard)
    if not _OWNERS.isdisjoint((*names.known, *names.modules, *names.unusable)):
        return False  # `self` and `cls` are arguments of methods only
    return all(_is_harmless(part, names) for part in parts)


class _Names:
    """Meanings of the names in some tests.

    - `known`: names of harmless builtins, of the program and of the tests
    - `unusable`: names imported from `typing`, whose caches keep their arguments alive; `TestCase`; and the unittest
      classes and their methods, which only unittest may call, so that `self` is an instance
    - `modules`: names of modules, with the module of each
    - `members`: the attribute that follows a node, by the node's id
    - `set_attributes`: attributes that the tests set
    - `harmless`: ids of the nodes `type` in comparisons such as `type(x) is list`, and of parts of unittest classes:
      the class, its bases, `classmethod`, and the first argument of a method
    """

    def __init__(self, parts: Sequence[ast.AST], remote: Set[str], standard: Mapping[str, str]) -> None:
        self.remote = remote
        self.known = {*_HARMLESS_BUILTINS, *remote, *standard}
        self.unusable: set[str] = set()
        self.modules = {name: source for name, source in standard.items() if ":" not in source}
        self.members: dict[int, str] = {}
        self.set_attributes: set[str] = set()
        self.harmless: set[int] = set()
        for part in parts:
            self._add(part)
        for part in parts:
            if isinstance(part, ast.ClassDef):
                self._add_class(part)

    def _add(self, part: ast.AST) -> None:
        if isinstance(part, ast.Import):
            for item in part.names:
                self.modules[imported_name(item)] = item.name
        elif isinstance(part, ast.ImportFrom):
            imported = self.unusable if part.module in ("typing", "unittest") else self.known
            imported.update(map(imported_name, part.names))
        elif isinstance(part, ast.FunctionDef | ast.ExceptHandler):
            self.known.add(part.name or "")
        elif isinstance(part, ast.arg) and part.arg not in _OWNERS:
            self.known.add(part.arg)
        elif isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            self.known.add(part.id)
        elif isinstance(part, ast.Attribute):
            self.members[id(part.value)] = part.attr
            if not isinstance(part.ctx, ast.Load):
                self.set_attributes.add(part.attr)
        elif isinstance(part, ast.Compare):
            for operand in (part.left, *part.comparators):
                if isinstance(operand, ast.Call) and _gives_type(operand):
                    self.harmless.add(id(operand.func))

    def _add_class(self, node: ast.ClassDef) -> None:
        """Add a unittest class without decorators, special methods or other base classes."""
        methods = list(of_kind(ast.FunctionDef, node.body))
        if node.decorator_list or node.keywords or node.name in _OWNERS:
            return
        if not node.bases or not all(map(self._is_test_case, node.bases)) or not all(map(_is_plain, methods)):
            return
        self.unusable.add(node.name)
        self.harmless.add(id(node))
        self.harmless.update(map(id, walk_all(node.bases)))
        for method in methods:
            self.unusable.add(method.name)
            self.harmless.add(id(method.args.args[0]))
            self.harmless.update(map(id, method.decorator_list))

    def _is_test_case(self, base: ast.expr) -> bool:
        if isinstance(base, ast.Name):  # TestCase of unittest, or a class that has been added
            return base.id in self.unusable and (base.id == "TestCase" or base.id not in self.known)
        return self.modules.get("unittest") == "unittest" and ast.unparse(base) == "unittest.TestCase"


def _gives_type(call: ast.Call) -> bool:
    """Return whether a call is `type(x)`; with three arguments, `type` makes a class."""
    has_one_argument = len(call.args) == 1 and not isinstance(call.args[0], ast.Starred) and not call.keywords
    return has_one_argument and name_of(call.func) == "type"


def _is_plain(method: ast.FunctionDef) -> bool:
    """Return whether a method has `self` as its first argument, or `cls` if it is a class method."""
    decorators = list(map(ast.unparse, method.decorator_list))
    if decorators not in ([], ["classmethod"]) or method.args.posonlyargs or not method.args.args:
        return False
    owner = "cls" if decorators else "self"
    is_special = method.name.startswith("__") or method.name in _OWNERS
    return method.args.args[0].arg == owner and not is_special


def _is_harmless(part: ast.AST, names: _Names) -> bool:
    """Return whether a node itself, without its children, is on the lists."""
    if id(part) in names.harmless:
        return True
    if isinstance(part, ast.Import):
        return all(item.name in _MEMBERS for item in part.names)
    if isinstance(part, ast.ImportFrom):
        if part.module == "unittest":
            return len(part.names) == 1 and part.names[0].name == "TestCase" and part.names[0].asname is None
        imported = {item.name for item in part.names}
        if part.module == "typing":  # as in most prompts, for annotations of a stub that is not run
            return "*" not in imported
        return part.level == 0 and imported <= _MEMBERS.get(part.module or "", set())
    if isinstance(part, ast.Attribute):
        return _is_harmless_attribute(part, names)
    if isinstance(part, ast.Name):
        return _is_harmless_name(part, names)
    if isinstance(part, ast.arg):
        return part.arg not in _OWNERS
    if isinstance(part, ast.With):
        return all(_is_harmless_context(item.context_expr) for item in part.items)
    if isinstance(part, ast.FunctionDef) and part.name.startswith("__"):
        return False  # in a class, perhaps below an `if`: a finaliser runs later
    if isinstance(part, ast.stmt):
        return isinstance(part, _STATEMENTS)
    return isinstance(part, _PARTS) and not isinstance(part, _SUSPENDED)


def _is_harmless_attribute(node: ast.Attribute, names: _Names) -> bool:
    if node.attr.startswith(("_", *_FRAMES)) or node.attr in _PROCESS_WIDE:
        return False
    owner = name_of(node.value)
    if owner == "cls" and node.attr not in names.set_attributes:
        return False  # a method of the class, which could be called with any other object as `self`
    return isinstance(node.ctx, ast.Load) or owner in _OWNERS


def _is_harmless_context(context: ast.expr) -> bool:
    if not isinstance(context, ast.Call) or not isinstance(context.func, ast.Attribute):
        return False
    return name_of(context.func.value) == "self" and context.func.attr in _CONTEXTS


def _is_harmless_name(node: ast.Name, names: _Names) -> bool:
    name = node.id
    if name in names.modules:  # only for one of its members
        return names.members.get(id(node), "") in _MEMBERS.get(names.modules[name], ())
    if name in _OTHER_BUILTINS and name not in names.remote:
        return False  # also where the tests bind the name themselves, perhaps only inside a function
    if name == "cls":
        return id(node) in names.members
    if name == "self":
        return True
    return name in names.known and name not in names.unusable and not name.startswith("__")
