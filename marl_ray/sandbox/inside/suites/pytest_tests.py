"""Tests in the style of pytest: functions `test_...` and classes `Test...` that nothing calls, `raises` and `approx`.

pytest itself is not in the sandbox. Its tests become statements that call them, with the arguments of `parametrize` and
of fixtures, and its helpers become small classes beside the tests.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterator, Sequence

from .statements import last_name, name_of, names_in, of_kind, syntax_tree

HELPERS = """
def assert_passes(test):
    pass

def started_fixture(fixture, running=[]):
    running.append(fixture)  # or else its `with` and `finally` would end before the test
    return next(fixture)

class raises:
    def __init__(self, expected, *call, match=None, **options):
        self.expected, self.match, self.value = expected, match, None
        if call:
            with self:
                call[0](*call[1:], **options)
    def __enter__(self):
        return self
    def __exit__(self, kind, value, trace):
        import re
        assert kind is not None, f"no exception, expected {self.expected}"
        if not issubclass(kind, self.expected):
            return False
        self.value, self.type = value, kind
        assert self.match is None or re.search(self.match, str(value)), f"{value} does not match {self.match!r}"
        return True

class approx:
    def __init__(self, expected, rel=None, abs=None, nan_ok=False):
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok
    def __eq__(self, actual):
        return self.agrees(self.expected, actual)
    def agrees(self, expected, actual):
        if isinstance(expected, dict):
            if not isinstance(actual, dict) or set(actual) != set(expected):
                return False
            return all(self.agrees(value, actual[key]) for key, value in expected.items())
        if isinstance(expected, (list, tuple)):
            if not isinstance(actual, (list, tuple)) or len(actual) != len(expected):
                return False
            return all(map(self.agrees, expected, actual))
        if isinstance(expected, (bool, str, type(None))) or isinstance(actual, (str, type(None))):
            return expected == actual
        if expected == actual:
            return True
        if expected != expected or actual != actual:
            return self.nan_ok and expected != expected and actual != actual
        size = expected if expected >= 0 else -expected
        tolerance = 1e-12 if self.abs is None else self.abs
        if self.rel is not None or self.abs is None:
            tolerance = max(tolerance, (1e-6 if self.rel is None else self.rel) * size)
        difference = expected - actual
        if size == float("inf"):
            return False
        return -tolerance <= difference <= tolerance
    __hash__ = None
    def __repr__(self):
        return f"approximately {self.expected!r}"

def fail_test(reason="", pytrace=True):
    assert False, reason

def skip_test(reason=""):
    assert False, f"skipped: {reason}"

def run_tests(*arguments):
    pass
"""
_REPLACED = {"fail": "fail_test", "skip": "skip_test", "main": "run_tests"}
_KEPT = ("raises", "approx", "fixture", "mark", "param")
_FIXTURE = "fixture_"
_SETUP = ("setup_class", "setup_method", "setup")
_TEARDOWN = ("teardown_method", "teardown", "teardown_class")


def pytest_items(tree: ast.Module, entry_point: str) -> list[list[ast.stmt]] | None:
    """Return the statements of a source in the style of pytest as items that are tests or belong to the next test. None
    for other sources.

    The tests take `entry_point` from the program, whatever module they import it from. Raises ValueError for a fixture
    that pytest itself provides.
    """
    others: list[ast.stmt] = []
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            is_test = node.name.startswith("test")
        else:
            is_test = isinstance(node, ast.ClassDef) and bool(_test_methods(node))
        if is_test:
            names.add(node.name)  # type: ignore[attr-defined]
        else:
            others.append(node)
    # A source that calls its tests itself, or asserts outside of them, is not for pytest.
    if not names or names & names_in(*others) or any(of_kind(ast.Assert, others)):
        return None
    source = _PytestNames(tree, entry_point).visit(copy.deepcopy(tree))
    source.body = [node for node in source.body if not _sets_marks(node)]
    fixtures = {}
    for function in of_kind(ast.FunctionDef, ast.walk(source)):
        if _take_fixture(function):
            fixtures[function.name] = function
    for name, fixture in fixtures.items():
        fixture.name = f"{_FIXTURE}{name}"  # a test's parameter has the fixture's own name
    items: list[list[ast.stmt]] = [[node] for node in syntax_tree(HELPERS).body]
    for node in source.body:
        items.append([node])
        if isinstance(node, ast.FunctionDef) and node.name in names:
            calls = list(_calls(node, node.name, fixtures))
            items[-1] += calls[:1]
            items += [[call] for call in calls[1:]]
        elif isinstance(node, ast.ClassDef) and node.name in names:
            _take_marks(node)
            for method in _test_methods(node):
                for call in _calls(method, f"made.{method.name}", fixtures):
                    items.append(_method_item(node, call))
    return items


def _test_methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    if not node.name.startswith("Test") or node.bases:
        return []
    return [item for item in of_kind(ast.FunctionDef, node.body) if item.name.startswith("test")]


def _method_item(node: ast.ClassDef, call: ast.stmt) -> list[ast.stmt]:
    """Return the statements that make an instance of a test class and call one of its tests."""
    own = {item.name for item in of_kind(ast.FunctionDef, node.body)}
    lines = [f"made = {node.name}()"]
    lines += [f"made.{name}()" for name in _SETUP if name in own]
    after = [f"made.{name}()" for name in _TEARDOWN if name in own]
    return [*syntax_tree("\n".join(lines)).body, call, *syntax_tree("\n".join(after)).body]


def _calls(test: ast.FunctionDef, function: str, fixtures: dict[str, ast.FunctionDef]) -> Iterator[ast.stmt]:
    """Yield a call of the test for every set of its parameters. Removes its decorators."""
    decorators = _take_marks(test)
    sets = [_parameter_sets(decorator) for mark, decorator in decorators if mark == "parametrize"]
    marks = [mark for mark, _ in decorators]
    if "usefixtures" in marks:
        raise ValueError(f"{test.name} has usefixtures: give it the fixture as an argument instead")
    if "skip" in marks or "xfail" in marks:
        return
    names = [item.arg for item in test.args.args if item.arg not in ("self", "cls")]
    required = names[: len(names) - len(test.args.defaults)]
    # The decorator next to the function varies fastest, as in pytest.
    for chosen in itertools.product(*reversed(sets)):
        given: dict[str, str] = {}
        for values in chosen:
            given |= values
        for name in required:
            if name not in given:
                given[name] = _fixture_call(name, fixtures, test.name)
        # Its name makes the call an assertion, which a test without any other one needs.
        yield syntax_tree(f"assert_passes({function}({_keywords(given)}))").body[0]


def _keywords(values: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _fixture_call(name: str, fixtures: dict[str, ast.FunctionDef], test: str) -> str:
    if name not in fixtures:
        raise ValueError(f"{test} uses the fixture {name}, which the tests do not define and the sandbox does not have")
    fixture = fixtures[name]
    arguments = {item.arg: _fixture_call(item.arg, fixtures, test) for item in fixture.args.args}
    call = f"{_FIXTURE}{name}({_keywords(arguments)})"
    if any(of_kind(ast.Yield, ast.walk(fixture))):
        return f"started_fixture({call})"
    return call


def _parameter_sets(decorator: ast.expr) -> list[dict[str, str]]:
    """Return the arguments of each call, as source. Raises ValueError for values that are not written in the list."""
    given: dict[str, ast.expr] = {}
    if isinstance(decorator, ast.Call):
        given = dict(zip(("argnames", "argvalues"), decorator.args, strict=False))
        given |= {word.arg: word.value for word in decorator.keywords if word.arg}
    names = given.get("argnames")
    values = given.get("argvalues")
    if not isinstance(names, ast.Constant | ast.List | ast.Tuple) or values is None:
        raise ValueError("parametrize needs the names of its arguments, and a list of their values")
    listed = ast.literal_eval(names)
    if not isinstance(listed, str | list | tuple):
        raise ValueError(f"parametrize needs the names of its arguments, not {listed!r}")
    if isinstance(listed, str):
        listed = listed.split(",")
        keys = [name.strip() for name in listed]
    else:
        keys = list(listed)
    if not isinstance(values, ast.List | ast.Tuple):
        raise ValueError("parametrize needs a list of its values, not the name of one")
    sets = []
    for value in values.elts:
        parts: Sequence[ast.expr] = [value]
        if isinstance(value, ast.Call) and last_name(value.func) == "param":
            parts = value.args
        elif len(keys) > 1 and isinstance(value, ast.List | ast.Tuple):
            parts = value.elts
        if len(parts) != len(keys):
            raise ValueError(f"parametrize has {len(parts)} values for {', '.join(keys)}")
        sets.append(dict(zip(keys, map(ast.unparse, parts), strict=True)))
    return sets


def _take_marks(node: ast.FunctionDef | ast.ClassDef) -> list[tuple[str, ast.expr]]:
    """Remove the marks of pytest from a definition's decorators. Return them with the name of each."""
    marks = []
    kept = []
    for decorator in node.decorator_list:
        name = _decorator_name(decorator)
        if name.startswith(("pytest.mark.", "mark.")):
            marks.append((name.rpartition(".")[2], decorator))
        else:
            kept.append(decorator)
    node.decorator_list = kept
    return marks


def _decorator_name(decorator: ast.expr) -> str:
    """Return the name of a decorator's function, with its module."""
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _sets_marks(node: ast.stmt) -> bool:
    """Return whether a statement is `pytestmark = ...`, which marks all tests of a source."""
    return isinstance(node, ast.Assign) and "pytestmark" in map(name_of, node.targets)


def _take_fixture(node: ast.FunctionDef) -> bool:
    """Return whether a function is a fixture, and remove the decorator. Raises ValueError for `autouse`."""
    kept = []
    for decorator in node.decorator_list:
        if _decorator_name(decorator) not in ("fixture", "pytest.fixture"):
            kept.append(decorator)
        elif "autouse" in ast.unparse(decorator):
            raise ValueError(f"the fixture {node.name} has autouse: give it to the tests as an argument instead")
    is_fixture = len(kept) < len(node.decorator_list)
    node.decorator_list = kept
    return is_fixture


def _known(name: str) -> str:
    """Return the replacement of a name of pytest. Raises ValueError if there is none: the program could define it."""
    if name not in (*_KEPT, *_REPLACED):
        raise ValueError(f"the tests use pytest.{name}, which the sandbox does not have")
    return _REPLACED.get(name, name)


class _PytestNames(ast.NodeTransformer):
    """Transformer that removes the imports of pytest and replaces its functions by the helpers' names."""

    def __init__(self, tree: ast.Module, entry_point: str) -> None:
        self._entry_point = entry_point
        self._modules = {"pytest"}
        self._names: dict[str, str] = {}
        """Names of pytest's own by the name that the tests import each as."""
        for part in ast.walk(tree):
            if isinstance(part, ast.Import):
                self._modules |= {item.asname or item.name for item in part.names if item.name == "pytest"}
            elif isinstance(part, ast.ImportFrom) and part.module == "pytest":
                self._names |= {item.asname or item.name: _known(item.name) for item in part.names}

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        node.names = [item for item in node.names if item.name != "pytest"]
        return node if node.names else None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        # Whatever module the tests import the entry point from, the program defines it.
        imports_program = any(item.name in (self._entry_point, "*") for item in node.names)
        return None if node.module == "pytest" or imports_program else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(self._names.get(node.id, node.id), node.ctx), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if name_of(node.value) not in self._modules:
            return node
        return ast.copy_location(ast.Name(_known(node.attr), node.ctx), node)
