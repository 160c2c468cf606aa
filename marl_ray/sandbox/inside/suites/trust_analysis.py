"""Analysis of which tests the judge can evaluate, and which must run in the guest, from the tests' text alone.

A test must run in the guest if it needs a class of the program as a class, or passes the program a function, a class,
an instance of its own class or an iterator. In all other tests, a value that the judge cannot handle is an error of the
program.
"""

from __future__ import annotations

import ast
import datetime
from collections.abc import Iterable, Iterator, Sequence

from .code_sinks import SinkAnalysis
from .statements import (
    FUNCTIONS,
    SCOPES,
    arguments_of,
    last_name,
    name_of,
    names_in,
    of_kind,
    spread,
    targets_of,
    walk_all,
)

_LAZY_MODULES = {"itertools", "functools", "operator", "io", "mock", "builtins", "pathlib", "uuid", "types"}
_MAKES_LAZY = {
    *("iter", "map", "filter", "zip", "enumerate", "reversed", "open", "partial", "itemgetter", "attrgetter"),
    *("methodcaller", "islice", "chain", "count", "cycle", "repeat", "takewhile", "dropwhile", "accumulate"),
    *("StringIO", "BytesIO", "Mock", "MagicMock", "memoryview", "Path", "UUID", "uuid4", "SimpleNamespace"),
}
"""Callables whose results are not plain data."""
_MODULES = {
    *("math", "cmath", "sys", "os", "re", "json", "random", "time", "datetime", "itertools", "functools", "copy"),
    *("collections", "operator", "string", "heapq", "bisect", "decimal", "fractions", "statistics", "typing", "io"),
    *("types", "inspect", "numbers", "enum", "dataclasses", "warnings", "textwrap", "hashlib", "struct"),
}
_MEMBERS = {
    **dict.fromkeys(("Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"), "collections"),
    **dict.fromkeys(("isclose", "isnan", "isinf", "sqrt", "floor", "ceil", "inf", "nan", "pi"), "math"),
    "Decimal": "decimal",
    "Fraction": "fractions",
    "deepcopy": "copy",
}
"""Members of the standard library that tests use without an import."""
_COMPARING = {"max", "min", "sorted", "sort", "set", "frozenset", "index", "count", "remove", "Counter"}
_OF_LISTS = ("sort", "append", "extend", "join")
_PATCHERS = {
    *("setattr", "delattr", "patch", "vars", "globals", "__dict__", "exec", "eval", "__import__", "reload"),
    *("modules", "__setattr__", "putenv", "unsetenv", "environ", "setitem", "path", "argv", "filters", "register"),
}
_METHODS = {name for kind in (list, dict, set, str, datetime.datetime) for name in dir(kind) if name[0] != "_"}
_METHODS -= {
    "year",
    "month",
    "day",
    "hour",
    "minute",
    "second",
    "microsecond",
    "min",
    "max",
    "resolution",
    "tzinfo",
    "fold",
}
_OBSERVING = {
    *("redirect_stdout", "redirect_stderr", "catch_warnings", "getcontext", "setcontext", "localcontext"),
}
"""Functions with an effect on the whole process, or that observe one."""
_LOOKING = {
    *("asdict", "astuple", "fields", "is_dataclass", "replace", "signature", "getsource", "getfullargspec"),
    *("iscoroutinefunction", "isgeneratorfunction", "isgenerator", "isclass", "isfunction", "get_type_hints"),
}
_RUNNING_COROUTINES = {"run_until_complete", "create_task", "run_coroutine_threadsafe"}
"""Methods of event loops that run a coroutine."""
_LOOKING_MODULES = {"dataclasses", "inspect", "typing"}
"""Functions of these modules that look into an object."""
_CONTAINERS = {"list", "tuple", "dict", "set", "deque", "OrderedDict", "defaultdict", "Counter"}


def stdlib_names(parts: Sequence[ast.AST], free: Iterable[str], entry_point: str) -> dict[str, str]:
    """Return the standard library's names among the free names: {name: "module" or "module:name"}.

    The judge resolves them itself, whatever the program defines: the program must not answer `isclose(f(x), 0.5)`. A
    name counts as a module only if the tests do nothing but access its attributes. `datetime` is the class of that name
    if the tests use one of its methods.
    """
    dotted = {part.value for part in of_kind(ast.Attribute, parts)}
    otherwise = {part.id for part in of_kind(ast.Name, parts) if part not in dotted}
    # A module that is passed on, or called, may be something of the program with that name.
    names = {}
    for name in free:
        if name in _MEMBERS:
            names[name] = f"{_MEMBERS[name]}:{name}"
        elif name in _MODULES and name not in otherwise:
            names[name] = name
    if "datetime" in names and any(map(_is_datetime_method, parts)):
        names["datetime"] = "datetime:datetime"
    names.pop(entry_point, None)
    return names


def _is_datetime_method(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or name_of(node.value) != "datetime":
        return False
    return not hasattr(datetime, node.attr)


def patches_modules(parts: Sequence[ast.AST]) -> bool:
    """Return whether the tests may change attributes of modules, or of anything but `self`."""
    for part in parts:
        if isinstance(part, ast.Attribute):
            is_own = name_of(part.value) == "self"
            if not is_own and (part.attr in _PATCHERS or not isinstance(part.ctx, ast.Load)):
                return True
        elif name_of(part) in _PATCHERS:
            return True
    return False


class TrustAnalysis:
    """Analysis of all tests of a problem. `remote` are the names that the program defines."""

    def __init__(
        self, statements: Sequence[ast.stmt], helpers: Sequence[ast.stmt], remote: Iterable[str], entry_point: str
    ) -> None:
        self._remote = frozenset(remote)
        self.tainted = _tainted(statements, self._remote)
        self._sinks = SinkAnalysis([*statements, *helpers], self.from_program, entry_point)
        self._own = _test_objects([*statements, *helpers])
        self._methods: set[str] = set()
        for node in of_kind(ast.ClassDef, walk_all(statements)):
            self._methods.update(item.name for item in of_kind(ast.FunctionDef, node.body))

    def from_program(self, node: ast.AST | None) -> bool:
        """Return whether a value may come from the program."""
        return node is not None and not self.tainted.isdisjoint(names_in(node))

    def is_remote(self, name: str) -> bool:
        """Return whether the program defines a name."""
        return name in self._remote

    def compares(self, statements: Iterable[ast.AST]) -> bool:
        """Return whether values of the program are compared with each other: by a comparison with the program on both
        sides, by sorting, or by building sets or dicts.
        """
        for part in walk_all(statements):
            values: list[ast.expr] = []
            builds = isinstance(part, ast.Set | ast.SetComp | ast.Dict | ast.DictComp)
            if isinstance(part, ast.Compare):
                values = [part.left, *part.comparators]
            elif isinstance(part, ast.Call):
                builds = last_name(part.func) in _COMPARING
                if is_assertion(part):
                    values = part.args
            if sum(map(self.from_program, values)) > 1:
                return True
            if builds and self.from_program(part):
                return True
        return False

    def guest_reason(self, statements: Iterable[ast.AST]) -> str:
        """Return why these statements must run in the guest; empty if the judge can evaluate them."""
        statements = list(statements)
        if sink := self._sinks.reason(statements):
            return sink
        for part in walk_all(statements):
            use, expressions = _class_uses(part)
            for expression in expressions:
                if names := names_in(expression) & self._remote:
                    return f"a test {use} the program's class {min(names)}"
            if self._awaits(part):
                return "a test runs a coroutine of the program"
            if self._observes(part):
                return "a test observes the program's process, or looks into an object of the program"
            if self._has_object_as_key(part):
                return "a test uses an object of the program as a key"
            if passed := self._passed_object(part):
                return f"a test passes the program {passed}"
        return ""

    def _has_object_as_key(self, part: ast.AST) -> bool:
        """Return whether this is `f()[P(1)]` with a class `P` of the program, whose hash only the program knows."""
        if not isinstance(part, ast.Subscript) or not self.from_program(part.value):
            return False
        for call in of_kind(ast.Call, ast.walk(part.slice)):
            name = name_of(call.func)
            if name in self._remote and name[:1].isupper():
                return True
        return False

    def _awaits(self, part: ast.AST) -> bool:
        if isinstance(part, ast.Await | ast.AsyncFor | ast.AsyncWith):
            return self.from_program(part)
        if isinstance(part, ast.comprehension):
            return bool(part.is_async) and self.from_program(part.iter)
        if not isinstance(part, ast.Call) or not isinstance(part.func, ast.Attribute):
            return False
        runs = part.func.attr in _RUNNING_COROUTINES or name_of(part.func.value) == "asyncio"
        return runs and self.from_program(part)

    def _observes(self, part: ast.AST) -> bool:
        if not isinstance(part, ast.Call):
            return False
        name = last_name(part.func)
        if name in _OBSERVING:
            return True
        base = getattr(part.func, "value", None)
        is_function = isinstance(part.func, ast.Name) or name_of(base) in _LOOKING_MODULES
        return is_function and name in _LOOKING and any(map(self.from_program, part.args))

    def _passed_object(self, part: ast.AST) -> str:
        """Describe a value that a node passes to the program and that is not plain data; empty if there is none."""
        values: list[ast.expr] = []
        if isinstance(part, ast.Call) and self.from_program(part.func):
            if not (isinstance(part.func, ast.Attribute) and part.func.attr in _OF_LISTS):
                values = arguments_of(part)
        elif isinstance(part, SCOPES):
            if any(map(self.from_program, part.decorator_list)):
                return f"{part.name} to decorate"
        elif isinstance(part, ast.Assign | ast.AnnAssign | ast.AugAssign) and part.value is not None:
            # The object itself, in `f.attribute = value` and `f()[0] = value`.
            changed = [getattr(target, "value", None) for target in targets_of(part)]
            if any(map(self.from_program, changed)):
                values = [part.value]
        for value in values:
            for inner in self._parts_of_value(value):
                if isinstance(inner, ast.Lambda):
                    return "a function"
                if isinstance(inner, ast.GeneratorExp):
                    return "a generator"
                if isinstance(inner, ast.Name) and inner.id in self._own:
                    return inner.id
                if isinstance(inner, ast.Attribute) and self._is_method(inner):
                    return f"the method {inner.attr}"
                if isinstance(inner, ast.Call) and _is_lazy(inner, self._own):
                    return f"what {last_name(inner.func)} makes"
        return ""

    def _is_method(self, node: ast.Attribute) -> bool:
        """Return whether this is a method of an instance or container that the tests make."""
        if names_in(node.value) & self._own.keys():
            return node.attr in self._methods
        return node.attr in _METHODS and not self.from_program(node.value)

    def _parts_of_value(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes whose values can be the value or a part of it, so not the arguments of calls, except of a
        container's constructor: `sorted(xs, key=lambda ...)` returns a list.
        """
        todo: list[ast.AST] = [node]
        while todo:
            part = todo.pop()
            yield part
            if isinstance(part, ast.Call):
                name = last_name(part.func)
                if name in _CONTAINERS and self._own.get(name) != "function":
                    todo += [value for value in part.args if not isinstance(value, ast.GeneratorExp | ast.Call)]
                    todo += [keyword.value for keyword in part.keywords]
            elif isinstance(part, ast.Subscript):
                todo.append(part.value)
            elif isinstance(part, ast.ListComp | ast.SetComp):
                todo.append(part.elt)
            elif isinstance(part, ast.DictComp):
                todo += [part.key, part.value]
            elif not isinstance(part, ast.Attribute | ast.Compare | ast.Lambda | ast.GeneratorExp):
                todo += ast.iter_child_nodes(part)


def is_assertion(node: ast.AST) -> bool:
    """Return whether a node is an assert statement, or a call of a function like `self.assertEqual`."""
    if isinstance(node, ast.Assert):
        return True
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node.func).rpartition(".")[2]
    return name.startswith("assert") or name == "fail"


def _class_uses(part: ast.AST) -> tuple[str, Sequence[ast.AST]]:
    """Return the expressions that a node uses as classes, and before them how."""
    if isinstance(part, ast.ExceptHandler) and part.type is not None:
        return "catches", [part.type]
    if isinstance(part, ast.ClassDef):
        return "derives from", part.bases
    if isinstance(part, ast.MatchClass):
        return "matches", [part.cls]
    classes: list[ast.expr] = []
    if isinstance(part, ast.Call):
        name = last_name(part.func).rpartition(".")[2]
        if name in ("isinstance", "issubclass", "assertIsInstance", "assertNotIsInstance"):
            classes = part.args[1:]
        elif name in ("assertRaises", "assertRaisesRegex", "raises"):
            classes = part.args[:1]
        elif name == "suppress":
            classes = part.args
        elif name.startswith("assert") and any(map(_is_type_of, part.args)):
            classes = [side for side in part.args if isinstance(side, ast.Name)]
    elif isinstance(part, ast.Compare):
        sides = [part.left, *part.comparators]
        if any(map(_is_type_of, sides)):
            classes = [side for side in sides if isinstance(side, ast.Name | ast.Tuple | ast.List)]
    return "asks for", classes


def _is_type_of(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "__class__"
    return isinstance(node, ast.Call) and name_of(node.func) == "type"


def _test_objects(statements: Sequence[ast.stmt]) -> dict[str, str]:
    """Return the tests' names for objects that are not plain data, and the kind of each.

    Kinds: "function", "class", "maker" (a function that makes instances of the tests' classes), "value" (an instance, a
    function, an iterator, or a container of one).
    """
    kinds: dict[str, str] = {}
    parts = list(walk_all(statements))
    # In this order: a maker is known by the classes, and a value by all of these.
    for part in parts:
        if isinstance(part, FUNCTIONS):
            kinds[part.name] = "function"
        elif isinstance(part, ast.ClassDef):
            kinds[part.name] = "class"
    for function in of_kind(ast.FunctionDef, parts):
        for inner in ast.walk(function):
            makes = isinstance(inner, ast.Call) and kinds.get(last_name(inner.func)) == "class"
            if makes or isinstance(inner, ast.Yield | ast.YieldFrom):
                kinds[function.name] = "maker"
                break
    for assignment in of_kind(ast.Assign, parts):
        if _is_lazy(assignment.value, kinds):
            for target in of_kind(ast.Name, assignment.targets):
                kinds.setdefault(target.id, "value")
    kinds.pop("check", None)  # HumanEval's own function
    return kinds


def _is_lazy(node: ast.AST, own: dict[str, str]) -> bool:
    """Return whether a value is not plain data or contains something that is not."""
    if isinstance(node, ast.Lambda | ast.GeneratorExp):
        return True
    if isinstance(node, ast.Name):
        return node.id in own
    if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict | ast.Starred | ast.IfExp):
        return any(_is_lazy(child, own) for child in ast.iter_child_nodes(node))
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    if isinstance(function, ast.Name):
        return function.id in _MAKES_LAZY or own.get(function.id) in ("class", "maker")
    base = getattr(function, "value", None)
    return last_name(function) in _MAKES_LAZY and name_of(base) in _LAZY_MODULES


def _tainted(statements: Sequence[ast.stmt], remote: frozenset[str]) -> frozenset[str]:
    """Return the program's names and the tests' names for values from the program and for functions that use it."""
    bindings: list[tuple[set[str], ast.AST]] = []
    parameters = {}
    for part in walk_all(statements):
        if isinstance(part, FUNCTIONS):
            parameters[part.name] = {item.arg for item in of_kind(ast.arg, ast.walk(part.args))}
    # Whatever a binding mentions may reach its names: rather too many names than too few.
    for part in walk_all(statements):
        if isinstance(part, SCOPES):
            bindings.append(({part.name}, part))
        elif isinstance(part, ast.Call) and last_name(part.func) in parameters:
            bindings += [(parameters[last_name(part.func)], argument) for argument in part.args]
        elif isinstance(part, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and part.value:
            bindings.append((names_in(*targets_of(part)), part.value))
        elif isinstance(part, ast.For | ast.AsyncFor | ast.comprehension):
            bindings.append((names_in(part.target), part.iter))
        elif isinstance(part, ast.withitem) and part.optional_vars is not None:
            bindings.append((names_in(part.optional_vars), part.context_expr))
    return spread(remote, [(names, names_in(source)) for names, source in bindings])
