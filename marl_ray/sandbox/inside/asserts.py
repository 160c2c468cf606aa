"""Asserts as cases: `check(candidate)` functions and assert lines, split and instrumented.

A case is the statements since the case before (its setup) and the one that asserts. Asserts are rewritten so that
a failed comparison can say what it got and what it expected.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Sequence
from typing import Any

from .suite import COMPARE, TRUTH, Case, Suite

_OPERATORS = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}
_BUILTINS = frozenset(dir(builtins))


def parse_source(source: str, what: str = "tests") -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f" at line {line}" if line else ""
        raise ValueError(f"{what} cannot be parsed: {getattr(error, 'msg', None) or error}{where}") from None


def is_check(node: ast.stmt) -> bool:
    if not isinstance(node, ast.FunctionDef) or node.name != "check":
        return False
    arguments = node.args
    return len(arguments.args) == 1 and not (arguments.vararg or arguments.kwonlyargs or arguments.posonlyargs)


def flat_check(tree: ast.Module, entry_point: str) -> list[ast.stmt]:
    """`check`'s body as module statements behind `candidate = entry_point`, the call of `check` dropped.

    A body that cannot stand outside its function (`return`, `yield`, `nonlocal`) stays one: one test in all.
    """
    statements: list[ast.stmt] = []
    found = False
    for node in tree.body:
        if is_check(node) and isinstance(node, ast.FunctionDef):
            found = True
            alias = parse_source(f"{node.args.args[0].arg} = {entry_point}").body
            if _own_nodes(node.body, (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global)):
                statements += [node, *parse_source(f"check({entry_point})").body]
            else:
                statements += [*alias, *node.body]
        elif not (isinstance(node, ast.Expr) and _called_name(node.value) == "check"):
            statements.append(node)
    if not found:
        raise ValueError("tests define no check(candidate)")
    return statements


def _own_nodes(body: Sequence[ast.AST], kinds: tuple[type[ast.AST], ...]) -> bool:
    """Whether a node of one of these kinds is in the body itself, functions and classes inside not counted."""
    todo = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, kinds):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)
    return False


def _called_name(node: ast.AST) -> str:
    """The last name of what is called: `f` for `f(x)`, `g` for `m.g(x)`, nothing when it is no call."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def assert_suite(items: list[list[ast.stmt]], entry_point: str, prompt: str, whole_items: bool) -> Suite:
    """Cases from statements; with `whole_items` an item that asserts is one case, however many asserts it
    has.
    """
    statements = [node for item in items for node in item]
    parts = {node: list(ast.walk(node)) for node in statements}
    checkers = {
        node.name
        for node in statements
        if isinstance(node, ast.FunctionDef) and any(isinstance(part, ast.Assert) for part in parts[node])
    }
    helpers, helper_names = _prompt_helpers(prompt, entry_point)
    everything = [part for node in statements for part in parts[node]]
    remote = (_free_names(everything) - helper_names) | {entry_point}
    in_guest = _needs_guest(everything, remote)
    instrument = _Instrument(remote)

    cases: list[Case] = []
    setup: list[ast.stmt] = []
    for item in items if whole_items else [[node] for node in statements]:
        body = [node for node in item if not _says_nothing(node)]
        if not any(_is_test(node, parts[node], checkers) for node in body):
            setup += body
            continue
        shown = "\n".join(ast.unparse(node) for node in body)
        plain = "\n".join([*(ast.unparse(node) for node in setup), shown])
        module = ast.Module([instrument.visit(node) for node in (*setup, *body)], [])
        try:
            code = compile(module, "<test>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"test {len(cases) + 1} cannot be compiled: {error}") from None
        cases.append(Case(source=shown, code=code, plain=plain))
        setup = []
    return Suite(
        form="asserts" if whole_items else "check",
        cases=tuple(cases),
        remote=frozenset(remote),
        helpers=tuple(compile(ast.Module([node], []), "<prompt>", "exec", dont_inherit=True) for node in helpers),
        preamble=tuple(ast.unparse(node) for node in helpers),
        in_guest=in_guest,
    )


def _says_nothing(node: ast.stmt) -> bool:
    """Doc strings, `from __future__`, and `assert True, "..."`, which HumanEval has by the dozen."""
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant) and bool(node.test.value)


def _is_test(node: ast.stmt, parts: Sequence[ast.AST], checkers: set[str]) -> bool:
    """Whether a statement can fail an assertion: it asserts, or calls something that does."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    for part in parts:
        name = _called_name(part)
        if isinstance(part, ast.Assert) or name in checkers or name.startswith("assert"):
            return True
    return False


def _free_names(parts: Sequence[ast.AST]) -> set[str]:
    """Names that the tests use and nothing in them, nor Python itself, defines."""
    used: set[str] = set()
    defined: set[str] = set()
    for part in parts:
        if isinstance(part, ast.Name):
            (used if isinstance(part.ctx, ast.Load) else defined).add(part.id)
        elif isinstance(part, ast.alias):
            defined.add((part.asname or part.name).partition(".")[0])
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(part.name)
        elif isinstance(part, ast.arg):
            defined.add(part.arg)
        elif isinstance(part, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and part.name:
            defined.add(part.name)
    return used - defined - _BUILTINS


def _needs_guest(parts: Sequence[ast.AST], remote: set[str]) -> str:
    """Why these tests cannot be evaluated outside the guest: they need a class of the program as a class."""

    def from_program(node: ast.AST | None) -> str:
        for part in ast.walk(node) if node is not None else ():
            if isinstance(part, ast.Name) and part.id in remote:
                return part.id
        return ""

    for part in parts:
        suspects: Iterable[ast.AST | None] = ()
        if isinstance(part, ast.ExceptHandler):
            suspects, what = [part.type], "catches"
        elif isinstance(part, ast.ClassDef):
            suspects, what = part.bases, "derives from"
        elif isinstance(part, ast.Call) and _called_name(part) in ("isinstance", "issubclass"):
            suspects, what = part.args[1:], "asks for"
        elif isinstance(part, ast.Call) and _called_name(part) in (
            "assertRaises",
            "assertIsInstance",
            "raises",
        ):
            suspects, what = part.args[:2], "asks for"
        for suspect in suspects:
            if name := from_program(suspect):
                return f"a test {what} the program's class {name}"
    return ""


def _prompt_helpers(prompt: str, entry_point: str) -> tuple[list[ast.stmt], set[str]]:
    """What a prompt that is Python defines besides the stub to be written: imports, functions, classes,
    constants.
    """
    try:
        body = ast.parse(prompt).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [], set()
    helpers: list[ast.stmt] = []
    names: set[str] = set()
    for node in body:
        try:
            compile(ast.Module([node], []), "<prompt>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # `nonlocal` at the top level, say
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(item.asname or item.name).partition(".")[0] for item in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name == entry_point or _is_stub(node):
                continue
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        else:
            continue
        helpers.append(node)
    return helpers, names


def _is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Nothing but a doc string, `pass` or `...`: something for the model to write."""
    return all(
        isinstance(part, ast.Pass) or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
        for part in node.body
    )


class _Instrument(ast.NodeTransformer):
    """Routes what an assert tests through the judge's recorder, the value under test first.

    `assert f(x) == y` becomes `assert COMPARE("==", f(x), y, False)`; the last argument tells that the sides
    are to be shown in the other order. Both sides are evaluated once and in their order, as before.
    """

    def __init__(self, remote: set[str]) -> None:
        self._remote = remote

    def _mentions_program(self, node: ast.AST) -> bool:
        names = self._remote | {"candidate"}
        return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, ast.expr) else super().visit(node)  # no assert is inside an expression

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            left, right = test.left, test.comparators[0]
            swapped = self._mentions_program(right) and not self._mentions_program(left)
            arguments = [_constant(_OPERATORS[type(test.ops[0])], node), left, right, _constant(swapped, node)]
            call = _call(COMPARE, arguments, node)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            call = _call(TRUTH, [test.operand, _constant(False, node)], node)
        else:
            call = _call(TRUTH, [test, _constant(True, node)], node)
        return ast.copy_location(ast.Assert(call, node.msg), node)


def _constant(value: str | bool, where: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Constant(value), where)


def _call(function: str, arguments: list[ast.expr], where: ast.AST) -> ast.Call:
    name = ast.copy_location(ast.Name(function, ast.Load()), where)
    return ast.copy_location(ast.Call(name, arguments, []), where)
