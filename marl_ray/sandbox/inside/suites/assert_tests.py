"""Parser of assert tests: splits `check(candidate)` functions and assert lines into instrumented cases.

A case consists of the statements since the previous case (its setup) and the statement that asserts.
"""

from __future__ import annotations

import ast
import builtins
import copy
import itertools
from collections.abc import Iterable, Sequence
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
    is_docstring,
    last_name,
    names_in,
    of_kind,
    stored_names,
    syntax_tree,
)
from .suite import ASKED, REACHED, Case, Suite
from .trust_analysis import TrustAnalysis, patches_modules, stdlib_names

_BUILTINS = frozenset(dir(builtins))


def parse_source(source: str, what: str = "tests") -> ast.Module:
    """Parse a test source, with the statements behind `if __name__ == "__main__":` as ordinary statements.

    Raises ValueError, in one line, if it is not Python.
    """
    try:
        tree = syntax_tree(source)
    except (SyntaxError, ValueError) as error:
        reason = getattr(error, "msg", None) or error
        if line := getattr(error, "lineno", None):
            reason = f"{reason} at line {line}"
        raise ValueError(f"{what} cannot be parsed: {reason}") from None
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
        kept = []
        for part in node.body:
            if not isinstance(part, ast.Expr) or self._RUNNERS.isdisjoint(names_in(part)):
                kept.append(part)
        return kept


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
            if _needs_function(node.body):
                statements += [node, *parse_source(f"check({entry_point})").body]
            else:
                candidate = node.args.args[0].arg
                statements += [*parse_source(f"{candidate} = {entry_point}").body, *node.body]
        elif not isinstance(node, ast.Expr) or _called_name(node.value) != "check":
            statements.append(node)
    if not has_check:
        raise ValueError("tests define no check(candidate)")
    return statements


def _needs_function(body: Sequence[ast.AST]) -> bool:
    """Return whether the body is only valid in a function. Nested functions and classes do not count."""
    todo = list(body)
    for node in todo:
        if not isinstance(node, (*SCOPES, ast.Lambda)):
            todo += ast.iter_child_nodes(node)
    return any(of_kind((ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global), todo))


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
        self.statements = list(itertools.chain(*items))
        self.parts = {node: list(ast.walk(node)) for node in self.statements}
        self.blocks: list[list[ast.stmt]] = []
        self.shown: list[list[ast.stmt]] = []
        checkers = set()
        for function in of_kind(ast.FunctionDef, self.statements):
            if any(of_kind(ast.Assert, self.parts[function])):
                checkers.add(function.name)
        if not whole_items:
            items = [[node] for node in self.statements]
        setup: list[ast.stmt] = []
        for item in items:
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
    statements = split.statements
    blocks = split.blocks
    helpers, helper_names = _prompt_helpers(prompt, entry_point)
    with_helpers = [*statements, *helpers]
    everything = list(itertools.chain(*split.parts.values()))
    free = (free_names(everything) - helper_names) | {entry_point}
    imported = set(map(imported_name, of_kind(ast.alias, everything)))
    standard = stdlib_names(everything, free | imported, entry_point)
    remote = frozenset(free - standard.keys())
    analysis = TrustAnalysis(statements, helpers, remote, entry_point)

    harmless = leaves_nothing(with_helpers, remote, standard)
    patches = patches_modules(everything)
    variables = SharedVariables([helpers, *blocks], patches)
    classes = [ast.unparse(node) for node in statements if _is_shared_class(node)]
    state = ProcessState(everything, standard)
    shown = list(map(_unparse, split.shown))
    reasons, definitions = _assign_processes(blocks, analysis, state, variables)
    plain = list(map(_unparse, blocks))
    preamble = [(ast.unparse(node), False) for node in helpers]
    preamble += [(ast.unparse(node), True) for node in definitions]
    if any(reasons):  # definitions may have been inserted
        variables = SharedVariables([helpers, *blocks], patches)
    compares = map(analysis.compares, blocks)
    instrument = AssertInstrumenter(analysis, InstanceAnalysis(with_helpers, remote))
    rewrite = RequestRewriter(analysis, remote, HelperCalls(statements, remote, entry_point))
    sources = []
    codes = []
    for number, block in enumerate(blocks, 1):
        marked = mark_assertions(block, remote, analysis)
        sources.append(f"{_IN_GUEST}\n{_unparse(marked)}")
        # Rewriting comes first: it asks for the helpers' calls where the tests have written them.
        code = [instrument.visit(rewrite.visit(node)) for node in marked]
        codes.append(_compile_test(code, number))
    cases = map(Case, shown, codes, plain, sources, reasons, compares, variables.flows()[1:])
    texts = "\n".join([*plain, *(source for source, _ in preamble)])
    return Suite(
        form="asserts" if split.whole_items else "check",
        cases=tuple(cases),
        remote=remote,
        helpers=tuple(compile_statements([node], "<prompt>") for node in helpers),
        preamble=tuple(preamble),
        classes=tuple(classes),
        standard=standard,
        uses_random="random" in texts,
        patches=patches,
        leaves_nothing=harmless or all(reasons),  # a test in the guest is not evaluated by the judge
    )


def _unparse(statements: Iterable[ast.stmt]) -> str:
    return "\n".join(map(ast.unparse, statements))


_HARMLESS_CONSTANTS = (None, True, False, 0, 1, "")


def _is_shared_class(node: ast.stmt) -> bool:
    """Return whether this is a class that the program may know, such as ListNode: it has methods only, nothing of the
    program or of the tests' data, and no constants that could be expected values."""
    if not isinstance(node, ast.ClassDef) or node.decorator_list or node.bases or node.keywords:
        return False
    if not node.body or not all(isinstance(item, ast.FunctionDef) for item in node.body):
        return False
    own = {node.name, *stored_names(node), *_BUILTINS}
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and part.value not in _HARMLESS_CONSTANTS:
            return False
        if isinstance(part, ast.arg):
            own.add(part.arg)
    return names_in(node) <= own


_IN_GUEST = f"import builtins\nbuiltins.{REACHED} = set()\nbuiltins.{ASKED} = bool"
"""Start of a test in the guest, whose functions may have other globals than the test itself."""


def _compile_test(body: list[ast.stmt], number: int) -> CodeType:
    try:
        return compile_statements([*map(ast.fix_missing_locations, body)], "<test>")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"test {number} cannot be compiled: {error}") from None


def join_processes(reasons: list[str], flows: Sequence[VariableFlow]) -> None:
    """Set the reason of every case that shares a variable with a case that must run in the guest."""
    in_guest = [number for number, reason in enumerate(reasons) if reason]
    while in_guest:
        known = in_guest.pop()
        for number, reason in enumerate(reasons):
            # A test depends on an earlier one only.
            first = min(known, number)
            later = max(known, number)
            if not reason and flows[first].touches & flows[later].reads:
                reasons[number] = "a test shares a variable with a test in the guest"
                in_guest.append(number)


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
    order = list(itertools.chain(*blocks))
    derived = {node.name for node in of_kind(ast.ClassDef, order) if analysis.guest_reason([node])}
    for number, block in enumerate(blocks):
        if not reasons[number] and variables.closure(names_in(*block)) & derived:
            reasons[number] = "a test uses a class that can be made in the program's process only"
    join_processes(reasons, variables.flows()[1:])
    bound: dict[str, list[tuple[int, ast.stmt]]] = {}
    for number, block in enumerate(blocks):
        for node in block:
            for name in bound_names(node) & variables.fixed:
                bound.setdefault(name, []).append((number, node))
    for_judge: dict[int, set[ast.stmt]] = {}
    for_guest: set[ast.stmt] = set()
    for number, block in enumerate(blocks):
        needed: set[ast.stmt] = set()
        used = names_in(*block)
        while used:
            places = [(place, node) for place, node in bound.get(used.pop(), ()) if place <= number]
            here = any(bool(reasons[place]) is bool(reasons[number]) for place, _ in places)
            if places and not here:
                definition = places[0][1]
                if definition not in needed:
                    needed.add(definition)
                    used |= names_in(definition)
        if reasons[number]:
            for_guest |= needed
        else:
            for_judge[number] = needed
    for number, definitions in for_judge.items():
        blocks[number][:0] = copy.deepcopy(sorted(definitions, key=order.index))
    return reasons, sorted(for_guest, key=order.index)


def _is_trivial(node: ast.stmt) -> bool:
    """Return whether a statement tests nothing: docstrings, `from __future__`, and HumanEval's `assert True, "..."`."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "__future__"
    if isinstance(node, ast.Assert):
        return isinstance(node.test, ast.Constant) and bool(node.test.value)
    return is_docstring(node)


def _is_test(node: ast.stmt, parts: Sequence[ast.AST], checkers: set[str]) -> bool:
    """Return whether a statement asserts, or calls something that does."""
    if isinstance(node, SCOPES):
        return False
    for part in parts:
        called = _called_name(part)
        if isinstance(part, ast.Assert) or called in checkers or called.startswith("assert"):
            return True
    return False


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
        body = syntax_tree(prompt).body
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
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= bound_names(node)
        elif isinstance(node, SCOPES) and node.name != entry_point and not _is_stub(node):
            names.add(node.name)
        else:
            continue
        helpers.append(node)
    return helpers, names


def _is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Return whether a definition consists of a docstring, `pass` or `...`: the part that the model writes."""
    return all(isinstance(part, ast.Pass) or is_docstring(part) for part in node.body)
