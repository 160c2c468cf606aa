"""Parser of assert tests: splits `check(candidate)` functions and assert lines into instrumented cases.

A case consists of the statements since the previous case (its setup) and the statement that asserts.
"""

from __future__ import annotations

import ast
import builtins
import copy
import itertools
from collections.abc import Sequence
from types import CodeType
from typing import Any, TypeGuard

from .helper_calls import HelperCalls
from .instrumentation import NAMING_NODES, AssertInstrumenter, InstanceAnalysis, mark_assertions
from .lasting_effects import leaves_nothing
from .process_effects import ProcessState
from .program_requests import RequestRewriter
from .statements import (
    SCOPES,
    SharedVariables,
    VariableFlow,
    bound_names,
    compile_statements,
    imported_name,
    last_name,
    names_in,
    parse,
    stored_names,
)
from .suite import ASKED, REACHED, Case, Suite
from .trust_analysis import TrustAnalysis, patches_modules, stdlib_names

_BUILTINS = frozenset(dir(builtins))


def parse_source(source: str, what: str = "tests") -> ast.Module:
    """Parse a test source, with the statements behind `if __name__ == "__main__":` as ordinary statements.

    Raises ValueError, in one line, if it is not Python.
    """
    try:
        tree = parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f" at line {line}" if line else ""
        raise ValueError(f"{what} cannot be parsed: {getattr(error, 'msg', None) or error}{where}") from None
    if "__main__" in source:
        tree = ast.fix_missing_locations(_GuardRemover().visit(tree))
    return tree


class _GuardRemover(ast.NodeTransformer):
    """Transformer that replaces `if __name__ == "__main__":` by its body, without calls of test runners."""

    _RUNNERS = frozenset(("unittest", "pytest", "doctest"))

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        if ast.unparse(node.test).replace('"', "'") not in _GUARDS:
            return node
        return [part for part in node.body if not (isinstance(part, ast.Expr) and names_in(part) & self._RUNNERS)]


_GUARDS = ("__name__ == '__main__'", "'__main__' == __name__")


def is_check(node: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    if not isinstance(node, ast.FunctionDef) or node.name != "check" or len(node.args.args) != 1:
        return False
    return not (node.args.vararg or node.args.kwonlyargs or node.args.posonlyargs)


def flat_check(tree: ast.Module, entry_point: str) -> list[ast.stmt]:
    """Return `check`'s body as module statements after `candidate = entry_point`, without the call of `check`.

    A body that is only valid in a function (`return`, `yield`, `global`) stays a function: a single test.
    """
    statements: list[ast.stmt] = []
    has_check = False
    for node in tree.body:
        if is_check(node):
            has_check = True
            if _contains(node.body, (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global)):
                statements += [node, *parse_source(f"check({entry_point})").body]
            else:
                statements += [*parse_source(f"{node.args.args[0].arg} = {entry_point}").body, *node.body]
        elif not (isinstance(node, ast.Expr) and _called_name(node.value) == "check"):
            statements.append(node)
    if not has_check:
        raise ValueError("tests define no check(candidate)")
    return statements


def _contains(body: Sequence[ast.AST], kinds: tuple[type[ast.AST], ...]) -> bool:
    """Return whether the body contains a node of these kinds, outside of nested functions and classes."""
    todo = list(body)
    for node in todo:
        if not isinstance(node, (*SCOPES, ast.Lambda)):
            todo += ast.iter_child_nodes(node)
    return any(isinstance(node, kinds) for node in todo)


def _called_name(node: ast.AST) -> str:
    """Return `f` for `f(x)`, `g` for `m.g(x)`, and an empty string if the node is not a call."""
    return last_name(node.func) if isinstance(node, ast.Call) else ""


class TestBlocks:
    """The statements of each case: with `whole_items` a case per asserting item, else per asserting statement.

    - `blocks`: the statements since the previous case, and the statements of the case itself
    - `shown`: the statements of the case itself
    """

    __test__ = False  # keeps pytest from collecting this class

    def __init__(self, items: list[list[ast.stmt]], whole_items: bool) -> None:
        self.whole_items = whole_items
        self.statements = [node for item in items for node in item]
        self.parts = {node: list(ast.walk(node)) for node in self.statements}
        self.blocks: list[list[ast.stmt]] = []
        self.shown: list[list[ast.stmt]] = []
        checkers = {
            node.name
            for node in self.statements
            if isinstance(node, ast.FunctionDef) and any(isinstance(part, ast.Assert) for part in self.parts[node])
        }
        setup: list[ast.stmt] = []
        for item in items if whole_items else [[node] for node in self.statements]:
            body = [node for node in item if not _is_trivial(node)]
            setup += body
            if any(_is_test(node, self.parts[node], checkers) for node in body):
                self.shown.append(body)
                self.blocks.append(setup)
                setup = []


def count_asserts(split: TestBlocks) -> int:
    """Return the number of cases of `assert_suite`. Raises ValueError for a case that cannot be compiled."""
    blocks = split.blocks
    for number, block in enumerate(blocks, 1):
        _compile_test(block, number)
    return len(blocks)


def assert_suite(split: TestBlocks, entry_point: str, prompt: str) -> Suite:
    """Return the suite of some statements."""
    statements, parts, blocks = split.statements, split.parts, split.blocks
    shown = ["\n".join(map(ast.unparse, body)) for body in split.shown]
    helpers, helper_names = _prompt_helpers(prompt, entry_point)
    everything = [part for node in statements for part in parts[node]]
    free = (free_names(everything) - helper_names) | {entry_point}
    imported = {imported_name(part) for part in everything if isinstance(part, ast.alias)}
    standard = stdlib_names(everything, free | imported, entry_point)
    remote = free - standard.keys()
    analysis = TrustAnalysis(statements, helpers, remote, entry_point)

    harmless = leaves_nothing([*statements, *helpers], remote, standard)
    patches = patches_modules(everything)
    variables = SharedVariables([helpers, *blocks], patches)
    classes = tuple(ast.unparse(node) for node in statements if _is_shared_class(node))
    state = ProcessState(everything, standard)
    reasons, definitions = _assign_processes(blocks, analysis, state, variables)
    plain = ["\n".join(map(ast.unparse, block)) for block in blocks]
    preamble = [(ast.unparse(node), False) for node in helpers] + [(ast.unparse(node), True) for node in definitions]
    if any(reasons):  # definitions may have been inserted
        variables = SharedVariables([helpers, *blocks], patches)
    flows = variables.flows()[1:]
    compares = [analysis.compares(block) for block in blocks]
    instrument = AssertInstrumenter(analysis, InstanceAnalysis([*statements, *helpers], remote))  # changes the blocks
    marked = [mark_assertions(block, remote, analysis) for block in blocks]
    sources = ["\n".join([_IN_GUEST, *map(ast.unparse, block)]) for block in marked]
    helper_calls = HelperCalls(statements, frozenset(remote), entry_point)
    rewrite = RequestRewriter(analysis, frozenset(remote), helper_calls)
    codes = [
        _compile_test([instrument.visit(rewrite.visit(node)) for node in block], number)
        for number, block in enumerate(marked, 1)
    ]
    return Suite(
        form="asserts" if split.whole_items else "check",
        cases=tuple(map(Case, shown, codes, plain, sources, reasons, compares, flows)),
        remote=frozenset(remote),
        helpers=tuple(compile_statements([node], "<prompt>") for node in helpers),
        preamble=tuple(preamble),
        classes=classes,
        standard=standard,
        uses_random=any("random" in source for source in (*plain, *(source for source, _ in preamble))),
        patches=patches,
        leaves_nothing=harmless or all(reasons),  # a test in the guest is not evaluated by the judge
    )


_HARMLESS_CONSTANTS = (None, True, False, 0, 1, "")


def _is_shared_class(node: ast.stmt) -> bool:
    """Return whether this is a class that the program may know, such as ListNode: it has methods only, nothing of the
    program or of the tests' data, and no constants that could be expected values."""
    if not isinstance(node, ast.ClassDef) or node.decorator_list or node.bases or node.keywords:
        return False
    if not node.body or not all(isinstance(item, ast.FunctionDef) for item in node.body):
        return False
    parts = list(ast.walk(node))
    constants = [part.value for part in parts if isinstance(part, ast.Constant)]
    own = {part.arg for part in parts if isinstance(part, ast.arg)} | stored_names(node) | {node.name}
    used = {part.id for part in parts if isinstance(part, ast.Name)} - own - _BUILTINS
    return not used and all(value in _HARMLESS_CONSTANTS for value in constants)


_IN_GUEST = f"import builtins\nbuiltins.{REACHED} = set()\nbuiltins.{ASKED} = bool"
"""Start of a test in the guest, whose functions may have other globals than the test itself."""


def _compile_test(body: list[ast.stmt], number: int) -> CodeType:
    try:
        return compile_statements([*map(ast.fix_missing_locations, body)], "<test>")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"test {number} cannot be compiled: {error}") from None


def join_processes(reasons: list[str], flows: Sequence[VariableFlow]) -> None:
    """Set the reason of every case that shares a variable with a case that must run in the guest."""
    pairs = itertools.combinations(range(len(reasons)), 2)
    shared = [(a, b) for a, b in pairs if flows[a].touches & flows[b].reads] if any(reasons) else []
    while more := [b if reasons[a] else a for a, b in shared if bool(reasons[a]) is not bool(reasons[b])]:
        reasons[more[0]] = "a test shares a variable with a test in the guest"


def _assign_processes(
    blocks: list[list[ast.stmt]], analysis: TrustAnalysis, state: ProcessState, variables: SharedVariables
) -> tuple[list[str], list[ast.stmt]]:
    """Return for each case why it must run in the guest, and the definitions of other cases that guest cases use.

    Judge and guest do not share the tests' variables, so tests that share one with a test in the guest run there too.
    A definition, whose value cannot be changed, is made in both processes. Inserts definitions into `blocks`.
    """
    reasons = [analysis.guest_reason(block) or state.guest_reason(block) for block in blocks]
    if all(reasons) or not any(reasons):
        return reasons, []
    derived = {
        node.name
        for block in blocks
        for node in block
        if isinstance(node, ast.ClassDef) and analysis.guest_reason([node])
    }
    for number, block in enumerate(blocks):
        if not reasons[number] and variables.closure(names_in(*block)) & derived:
            reasons[number] = "a test uses a class that can be made in the program's process only"
    join_processes(reasons, variables.flows()[1:])
    bound: dict[str, list[tuple[int, ast.stmt]]] = {}
    for number, block in enumerate(blocks):
        for node in block:
            for name in bound_names(node) & variables.fixed:
                bound.setdefault(name, []).append((number, node))
    order = [node for block in blocks for node in block]
    needed: list[list[ast.stmt]] = [[] for _ in blocks]
    for number, block in enumerate(blocks):
        used = set().union(*map(names_in, block))
        while used:
            places = [(place, node) for place, node in bound.get(used.pop(), ()) if place <= number]
            here = any(bool(reasons[place]) is bool(reasons[number]) for place, _ in places)
            if places and not here and places[0][1] not in needed[number]:
                needed[number].append(places[0][1])
                used |= names_in(places[0][1])
    for number, block in enumerate(blocks):
        if not reasons[number]:
            block[:0] = copy.deepcopy(sorted(needed[number], key=order.index))
    in_guest = {node for number, nodes in enumerate(needed) if reasons[number] for node in nodes}
    return reasons, sorted(in_guest, key=order.index)


def _is_trivial(node: ast.stmt) -> bool:
    """Return whether a statement tests nothing: docstrings, `from __future__`, and HumanEval's `assert True, "..."`."""
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant) and bool(node.test.value)


def _is_test(node: ast.stmt, parts: Sequence[ast.AST], checkers: set[str]) -> bool:
    """Return whether a statement asserts, or calls something that does."""
    if isinstance(node, SCOPES):
        return False
    called = set(map(_called_name, parts))
    return any(isinstance(part, ast.Assert) for part in parts) or any(
        name in checkers or name.startswith("assert") for name in called
    )


def free_names(parts: Sequence[ast.AST]) -> set[str]:
    """Return the names that the tests use but neither define nor find among the builtins."""
    used: set[str] = set()
    defined: set[str] = set()
    for part in parts:
        if isinstance(part, ast.Name):
            (used if isinstance(part.ctx, ast.Load) else defined).add(part.id)
        elif isinstance(part, ast.alias):
            defined.add(imported_name(part))
        elif isinstance(part, ast.arg):
            defined.add(part.arg)
        elif isinstance(part, NAMING_NODES) and part.name:
            defined.add(part.name)
    return used - defined - _BUILTINS


def _prompt_helpers(prompt: str, entry_point: str) -> tuple[list[ast.stmt], set[str]]:
    """Return the statements and names that a Python prompt defines besides the stub: imports, functions, constants."""
    try:
        body = parse(prompt).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [], set()
    helpers: list[ast.stmt] = []
    names: set[str] = set()
    for node in body:
        try:
            compile_statements([node], "<prompt>")
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # e.g. `nonlocal` at the top level
            continue
        if isinstance(node, ast.Assign):
            names |= names_in(*node.targets)
        elif isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, SCOPES) and node.name != entry_point and not _is_stub(node)
        ):
            names |= bound_names(node)
        else:
            continue
        helpers.append(node)
    return helpers, names


def _is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Return whether a definition consists of a docstring, `pass` or `...`: the part that the model writes."""
    others = [part for part in node.body if not isinstance(part, ast.Pass)]
    return all(isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) for part in others)
