"""Analysis of which tests leave nothing behind in the process that evaluates them, from the tests' text alone.

The judge evaluates such tests itself, for one problem after another. All other tests get a process of their own, which
costs more than a short program. The rules are lists of what is allowed: a statement, a builtin, a module or an
attribute that is not on a list may do anything, such as `eval`, `setattr(Counter, ...)`, a patched module, a thread, or
a finaliser that runs during the tests of a later problem.

Tests may be hostile too, and Python reaches every module from any function. So no attribute may begin with an
underscore or lead to frames and code (`gi_frame`), and no function is allowed that takes the name of an attribute as a
string (`getattr`, `operator.attrgetter`, `string.Formatter`, `functools.wraps`).
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Mapping, Sequence, Set

from .statements import imported_name, walk_all

_STATEMENTS = (
    *(ast.FunctionDef, ast.Return, ast.Delete, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If),
    *(ast.Raise, ast.Try, ast.Assert, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Expr, ast.Pass),
    *(ast.Break, ast.Continue),
)
"""No class, whose `__del__` could run later, and no `with`, whose context could be anything."""
_SUSPENDED = (ast.Yield, ast.YieldFrom, ast.Await)
"""A suspended function runs its `finally` when it is deleted, which may be later."""
_PARTS = (
    *(ast.expr, ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop, ast.comprehension),
    *(ast.ExceptHandler, ast.arguments, ast.arg, ast.keyword, ast.alias),
)
_FRAMES = ("gi_", "cr_", "ag_", "tb_", "f_", "co_")
"""Prefixes of the attributes of generators, coroutines, tracebacks, frames and code objects."""

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
    return all(_is_harmless(part, names) for part in parts)


class _Names:
    """What the names in some tests mean.

    - `known`: names of harmless builtins, of the program and of the tests
    - `types`: names imported from `typing`, whose caches keep what they are applied to
    - `modules`: names of modules, with the module of each
    - `members`: the attribute that follows a node, by the node's id
    - `comparing`: ids of the nodes `type` in comparisons such as `type(x) is list`
    """

    def __init__(self, parts: Sequence[ast.AST], remote: Set[str], standard: Mapping[str, str]) -> None:
        self.remote = remote
        self.known = {*_HARMLESS_BUILTINS, *remote, *standard}
        self.types: set[str] = set()
        self.modules = {name: source for name, source in standard.items() if ":" not in source}
        self.members: dict[int, str] = {}
        self.comparing: set[int] = set()
        for part in parts:
            self._add(part)

    def _add(self, part: ast.AST) -> None:
        if isinstance(part, ast.Import):
            self.modules |= {imported_name(item): item.name for item in part.names}
        elif isinstance(part, ast.ImportFrom):
            imported = self.types if part.module == "typing" else self.known
            imported.update(map(imported_name, part.names))
        elif isinstance(part, ast.FunctionDef | ast.ExceptHandler):
            self.known.add(part.name or "")
        elif isinstance(part, ast.arg):
            self.known.add(part.arg)
        elif isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            self.known.add(part.id)
        elif isinstance(part, ast.Attribute):
            self.members[id(part.value)] = part.attr
        elif isinstance(part, ast.Compare):
            for operand in (part.left, *part.comparators):
                if isinstance(operand, ast.Call) and _has_one_argument(operand):
                    self.comparing.add(id(operand.func))


def _has_one_argument(call: ast.Call) -> bool:
    return len(call.args) == 1 and not isinstance(call.args[0], ast.Starred) and not call.keywords


def _is_harmless(part: ast.AST, names: _Names) -> bool:
    """Return whether a node itself, without its children, is on the lists."""
    if isinstance(part, ast.Import):
        return all(item.name in _MEMBERS for item in part.names)
    if isinstance(part, ast.ImportFrom):
        imported = {item.name for item in part.names}
        if part.module == "typing":  # as in most prompts, for annotations of a stub that is not run
            return "*" not in imported
        return part.level == 0 and imported <= _MEMBERS.get(part.module or "", set())
    if isinstance(part, ast.Attribute):
        return isinstance(part.ctx, ast.Load) and not part.attr.startswith(("_", *_FRAMES))
    if isinstance(part, ast.Name):
        return _is_harmless_name(part, names)
    if isinstance(part, ast.stmt):
        return isinstance(part, _STATEMENTS)
    return isinstance(part, _PARTS) and not isinstance(part, _SUSPENDED)


def _is_harmless_name(node: ast.Name, names: _Names) -> bool:
    name = node.id
    if name in names.modules:  # only for one of its members
        return names.members.get(id(node), "") in _MEMBERS.get(names.modules[name], ())
    if name == "type":  # the result of a call with one argument may be `type` itself, which makes classes
        return id(node) in names.comparing
    if name in _OTHER_BUILTINS and name not in names.remote:
        return False  # also where the tests bind the name themselves, perhaps only inside a function
    return name in names.known and name not in names.types and not name.startswith("__")
