"""How main uses the helpers that the other agents wrote, by reaching definitions on its syntax tree.

docs/reference/environments/code_generation.md defines the terms. Where the static analysis cannot follow a value, main
gets the benefit of the doubt.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from marl_ray.environments.code_generation.extraction import ExtractedFunction

Binding = tuple[ast.AST, bool]
"""The value that a name is bound to; with False the name is bound to something computed from that value."""
Names = dict[str, frozenset[Binding]]
"""The bindings that may be in force at a point of the program."""
HelperCall = tuple[ast.AST, str]
Source = str | HelperCall

CONVERSIONS = {"bool", "bytes", "complex", "dict", "float", "frozenset", "int", "iter", "list", "set", "str", "tuple"}
"""Builtins that return their argument as another type."""
CALLERS = {"filter", "map", "max", "min", "sorted"}
"""Builtins without effects of their own that may call a function they receive."""
PURE = {"abs", "all", "any", "callable", "chr", "divmod", "enumerate", "format", "hash", "id", "isinstance", "len"}
PURE |= {"next", "ord", "pow", "print", "range", "repr", "reversed", "round", "slice", "sum", "type", "zip"}
"""Other builtins whose arguments are used only if the result is used."""
NEUTRAL = {"Add 0", "Add ''", "Add []", "Sub 0", "Mult 1", "Div 1", "FloorDiv 1", "Eq True", "Is True", "NotEq False"}
NEUTRAL |= {"Add 0.0", "Sub 0.0", "Mult 1.0", "Div 1.0"}
"""Operations that leave their left operand unchanged, by operator and right operand; `0 + x` and `1 * x` count too."""
WORK = "(work)"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class HelperUse:
    """The called helpers, the helpers with a discarded result, and whether main only wraps a helper."""

    called: frozenset[str] = frozenset()
    misused: frozenset[str] = frozenset()
    thin_wrapper: bool = False


def helper_use(main: ExtractedFunction, helpers: Collection[str]) -> HelperUse:
    if main.function is None or not helpers:
        return HelperUse()
    flow = _flow(main, main.function, helpers)
    returned = flow.returned[main.function]
    used = flow.calls_behind([*returned, *flow.conditions, *flow.effects])
    sources = flow.sources(returned)
    # A choice between several values by a condition on a helper's result is main's own work.
    chosen = len(sources) > 1 and bool(flow.calls_behind(flow.conditions))
    returns_helper = not flow.calls.isdisjoint(sources)
    return HelperUse(
        called=frozenset(name for _, name in flow.calls),
        misused=frozenset(name for _, name in flow.calls - used),
        thin_wrapper=returns_helper and WORK not in sources and not chosen,
    )


def conditions_on(main: ExtractedFunction, helper: str) -> list[ast.AST]:
    """Return main's conditions and comparisons that depend on the helper's result, except within `while` loops."""
    if main.function is None:
        return []
    flow = _flow(main, main.function, [helper])
    # A dict keeps the order, and each condition once: a comparison is often the condition itself.
    candidates = dict.fromkeys(flow.conditions)
    in_loops: set[ast.AST] = set()
    for node in ast.walk(main.function):
        if isinstance(node, ast.Compare):
            candidates[node] = None
        elif isinstance(node, ast.While):
            # A constant in place of a loop's condition could make the loop endless.
            in_loops.update(ast.walk(node))
    outside = [node for node in candidates if node not in in_loops]
    return [node for node in outside if flow.calls_behind([node])]


def _flow(main: ExtractedFunction, function: ast.FunctionDef, helpers: Collection[str]) -> _Flow:
    bound: set[str] = set()
    for child in ast.iter_child_nodes(function):
        for node in ast.walk(child):
            bound.update(_bound_names(node))
    # A helper's name that main imports or binds itself stands for something else.
    return _Flow(function, frozenset(helpers) - main.imported - bound)


class _Flow:
    """The helper calls, conditions, effects and returned values of a function's reachable code, and the values that
    each name may have where it is read."""

    def __init__(self, main: ast.FunctionDef, helpers: frozenset[str]) -> None:
        self.calls: set[HelperCall] = set()
        self.conditions: list[ast.AST] = []
        self.effects: list[ast.AST] = []
        self.returned: dict[ast.AST, list[ast.AST]] = {main: []}
        self._function: ast.AST = main
        self._helpers = helpers
        self._values: dict[ast.AST, frozenset[Binding]] = defaultdict(frozenset)
        self._changing: frozenset[str] = frozenset()
        self._repeated: set[ast.AST] = set()
        self._seen: dict[int, frozenset[Binding]] = {}
        self._outer: set[str] = set()
        for node in ast.walk(main):
            if isinstance(node, ast.Global | ast.Nonlocal):
                self._outer.update(node.names)
        self._read_functions: dict[Function, None] = {}
        self._block(main.body, {})
        # A nested function may run at any time, so that every binding of main may be in force.
        outer = _bindings_within(main)
        while self._read_functions:
            function, _ = self._read_functions.popitem()
            self._function = function
            self.returned[function] = []
            names = dict(outer)
            for node in ast.walk(function.args):
                if isinstance(node, ast.arg):
                    names[node.arg] = frozenset([(node, False)])
            self._block(function.body, names)

    def _block(self, block: Sequence[ast.stmt], names: Names) -> Names | None:
        """Return the bindings in force after statements; None if their end is not reachable."""
        after: Names | None = names
        for statement in block:
            if after is None:
                break
            after = self._statement(statement, after)
        return after

    def _statement(self, node: ast.stmt, names: Names) -> Names | None:
        changing = self._changing
        if isinstance(node, ast.For | ast.While):
            # From the second round on, a loop reads names that it bound in an earlier round.
            bound = _bindings_within(node)
            names = _merged(names, bound)
            self._changing |= bound.keys()
        parts = list(_own_nodes(node))
        readable = dict(names)
        for part in parts:
            if isinstance(part, ast.NamedExpr):
                # `:=` binds before the rest of the statement reads the name.
                for name, value, exact in _bindings(part):
                    readable[name] = frozenset([(value, exact)])
        self._read(parts, readable)
        for part in parts:
            for name, value, exact in _bindings(part):
                if name in self._outer or not name:
                    self.effects.append(value)
                names = names | {name: frozenset([(value, exact)])}
        match node:
            case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
                return None
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return names
            case ast.If(test=ast.Constant(value=constant), body=body, orelse=orelse):
                return self._block(body if constant else orelse, names)
            case ast.If(body=body, orelse=orelse):
                ends = [self._block(body, names), self._block(orelse, names)]
                if ends == [None, None]:
                    return None
                return _merged(*ends)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
                # The exception may come before or after any statement of the body.
                caught = _merged(names, *map(_bindings_within, body))
                ends = [self._block([*body, *orelse], names)]
                for handler in handlers:
                    ends.append(self._block(handler.body, caught))
                final = self._block(finalbody, _merged(*ends) or caught)
                if all(end is None for end in ends):
                    return None
                return final
        if not hasattr(node, "body") and not hasattr(node, "cases"):
            return names
        # Loops, `with` and `match`: each block may run or not.
        ends = [names]
        for parent in [node, *getattr(node, "cases", [])]:
            for field in ("body", "orelse"):
                ends.append(self._block(getattr(parent, field, []), names))
        self._changing = changing
        return _merged(*ends)

    def _read(self, parts: Sequence[ast.AST], names: Names) -> None:
        """Record the values, helper calls, conditions and effects of one statement."""
        own_targets: set[str] = set()
        for part in parts:
            if isinstance(part, ast.comprehension):
                own_targets.update(name for name, _, _ in _unpacked(part.target, part))
        for part in parts:
            if isinstance(part, ast.Name) and part.id not in own_targets:
                self._add_values(part, names.get(part.id, frozenset()))
        for part in parts:
            match part:
                case ast.Return(value=ast.expr() as value) | (ast.Yield() | ast.YieldFrom() as value):
                    self.returned[self._function].append(value)
                case ast.If(test=test) | ast.While(test=test) | ast.Assert(test=test) | ast.IfExp(test=test):
                    self.conditions.append(test)
                case ast.Match(subject=test) | ast.match_case(guard=ast.expr() as test):
                    self.conditions.append(test)
                case ast.BoolOp(values=[*tests, _]) | ast.comprehension(ifs=tests):
                    self.conditions += tests
                case ast.For(iter=value) | ast.withitem(context_expr=value) | ast.Raise(exc=ast.expr() as value):
                    self.effects.append(value)
                case ast.Call():
                    self._read_call(part)

    def _read_call(self, call: ast.Call) -> None:
        arguments = _arguments(call)
        builtin = call.func.id if isinstance(call.func, ast.Name) else ""
        called = self._helpers_of(call.func)
        passed: frozenset[str] = frozenset()
        if builtin not in CONVERSIONS | PURE:
            # A function that receives a helper may call it.
            passed = self._helpers_of(*arguments)
        self.calls |= {(call, name) for name in called | passed}
        if not called and builtin not in CONVERSIONS | CALLERS | PURE:
            self.effects += [call] if passed else arguments
        for node in ast.walk(call):
            if isinstance(node, ast.Name) and node.id in self._changing:
                self._repeated.add(call)

    def _add_values(self, name: ast.Name, values: frozenset[Binding]) -> None:
        """Record values of a name, and the functions among them. Equal sets are kept as one object."""
        known = self._values[name]
        if values <= known:
            return
        self._values[name] = known | values if known else values
        if id(values) in self._seen:
            return
        self._seen[id(values)] = values  # keeps the set alive, so that its id stays its own
        for value, exact in values:
            if exact and isinstance(value, Function) and value not in self.returned:
                self._read_functions[value] = None

    def _helpers_of(self, *nodes: ast.AST) -> frozenset[str]:
        """Return the helpers that names stand for."""
        candidates = list(nodes)
        for node in nodes:
            candidates += [value for value, exact in self._values.get(node, ()) if exact]
        names = frozenset(candidate.id for candidate in candidates if isinstance(candidate, ast.Name))
        return names & self._helpers

    def calls_behind(self, values: Iterable[ast.AST]) -> set[HelperCall]:
        """Return the helper calls whose results these values depend on."""
        queue = list(values)
        seen: set[ast.AST] = set()
        followed: set[int] = set()  # equal sets of bindings are one object, which is followed once
        while queue:
            node = queue.pop()
            if node in seen:
                continue
            seen.add(node)
            queue += ast.iter_child_nodes(node)
            bindings = self._values.get(node, frozenset())
            if id(bindings) in followed:
                continue
            followed.add(id(bindings))
            for value, _ in bindings:
                queue += self.returned.get(value, [value])
        return {call for call in self.calls if call[0] in seen}

    def sources(self, values: Iterable[ast.AST]) -> set[Source]:
        """Return the helper calls and names whose unchanged value these may be; WORK for every other value."""
        queue: list[ast.AST | Source] = list(values)
        seen: set[ast.AST | Source] = set()
        while queue:
            node = queue.pop()
            if node in seen:
                continue
            seen.add(node)
            if isinstance(node, ast.AST):
                queue += self._unchanged(node)
        return {source for source in seen if not isinstance(source, ast.AST)}

    def _unchanged(self, node: ast.AST) -> Sequence[ast.AST | Source]:
        """Return the parts, or the sources, of which a value is one, unchanged."""
        match node:
            case ast.Constant() | ast.UnaryOp(operand=ast.Constant()):
                return []
            case ast.Name(id=name):
                return [value if exact else WORK for value, exact in self._values[node]] or [name]
            case ast.NamedExpr(value=value) | ast.Starred(value=value) | ast.JoinedStr(values=[value]):
                return [value]
            case ast.FormattedValue(value=value, format_spec=None):
                return [value]
            case ast.List(elts=[ast.Starred() as value]):
                return [value]
            case ast.Subscript(value=value, slice=ast.Slice(None, None, None)):
                return [value]
            case ast.BoolOp(values=values) | ast.Subscript(value=ast.List(elts=values) | ast.Tuple(elts=values)):
                return values
            case ast.IfExp(body=body, orelse=orelse):
                return [body, orelse]
            case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
                operator = type(op).__name__
                if f"{operator} {ast.unparse(right)}" in NEUTRAL:
                    return [left]
                if isinstance(op, ast.Add | ast.Mult) and f"{operator} {ast.unparse(left)}" in NEUTRAL:
                    return [right]
            case ast.ListComp(elt=ast.Name(x), generators=[ast.comprehension(ast.Name(y), value, [])]) if x == y:
                return [value]
            case ast.Call():
                return self._unchanged_by_call(node)
        return [WORK]

    def _unchanged_by_call(self, call: ast.Call) -> Sequence[ast.AST | Source]:
        called = self._helpers_of(call.func)
        if called:
            # A helper that a loop calls for changing values is a part of main's work.
            return [WORK] if call in self._repeated else [(call, name) for name in called]
        arguments = _arguments(call)
        if isinstance(call.func, ast.Name) and call.func.id in CONVERSIONS and len(arguments) <= 1:
            return arguments
        functions = [value for value, _ in self._values.get(call.func, ())]
        if not functions or not all(function in self.returned for function in functions):
            return [WORK]
        results: list[ast.AST] = []
        for function in functions:
            results += self.returned[function]
        return results


def _merged(*paths: Names | None) -> Names:
    """Return the bindings where several paths meet. Paths that end earlier are None."""
    merged: Names = {}
    for names in paths:
        for name, bindings in (names or {}).items():
            known = merged.setdefault(name, bindings)
            # A set that adds nothing is not united, so that equal sets stay one object.
            if known is not bindings and not bindings <= known:
                merged[name] = known | bindings
    return merged


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes of a statement, except for the nodes of nested statements."""
    stack: list[ast.AST] = [statement]
    while stack:
        node = stack.pop()
        yield node
        stack += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]


def _bindings_within(node: ast.AST) -> Names:
    bindings: dict[str, list[Binding]] = defaultdict(list)
    for part in ast.walk(node):
        for name, value, exact in _bindings(part):
            bindings[name].append((value, exact))
    return {name: frozenset(values) for name, values in bindings.items()}


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.AST, bool]]:
    """Yield the bindings of a node: name (empty for an attribute or element), value, and whether the value is exact."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _unpacked(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            yield from _unpacked(target, value)
        case ast.AugAssign(target=target):
            yield from _unpacked(target, node)
        case ast.For(target=target, iter=value) | ast.withitem(optional_vars=ast.expr() as target, context_expr=value):
            yield from _unpacked(ast.Starred(target), value)  # never exact: the target gets an item, not the value
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name, node, True
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name, node, False


def _unpacked(target: ast.expr, value: ast.AST) -> Iterator[tuple[str, ast.AST, bool]]:
    for part in ast.walk(target):
        if isinstance(part, ast.Name | ast.Attribute | ast.Subscript) and isinstance(part.ctx, ast.Store):
            name = part.id if isinstance(part, ast.Name) else ""
            yield name, value, part is target


def _bound_names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.MatchMapping(rest=str(name)):
            yield name
        case ast.alias(name=name, asname=alias):
            yield alias or name.split(".")[0]
        case _:
            for name, _, _ in _bindings(node):
                yield name
