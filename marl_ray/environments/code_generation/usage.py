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
    chosen = len(sources) > 1 and bool(flow.calls_behind(flow.conditions))
    return HelperUse(
        called=frozenset(name for _, name in flow.calls),
        misused=frozenset(name for _, name in flow.calls - used),
        thin_wrapper=not flow.calls.isdisjoint(sources) and WORK not in sources and not chosen,
    )


def conditions_on(main: ExtractedFunction, helper: str) -> list[ast.AST]:
    """Return main's conditions and comparisons that depend on the helper's result, except within `while` loops."""
    if main.function is None:
        return []
    flow = _flow(main, main.function, [helper])
    loops = (node for node in ast.walk(main.function) if isinstance(node, ast.While))
    within = {node for loop in loops for node in ast.walk(loop)}
    comparisons = (node for node in ast.walk(main.function) if isinstance(node, ast.Compare))
    candidates = dict.fromkeys([*flow.conditions, *comparisons])
    return [node for node in candidates if node not in within and flow.calls_behind([node])]


def _flow(main: ExtractedFunction, function: ast.FunctionDef, helpers: Collection[str]) -> _Flow:
    inside = (node for child in ast.iter_child_nodes(function) for node in ast.walk(child))
    bound = {name for node in inside for name in _bound_names(node)}
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
        self._outer = {name for n in ast.walk(main) if isinstance(n, ast.Global | ast.Nonlocal) for name in n.names}
        self._read_functions: dict[Function, None] = {}
        self._block(main.body, {})
        outer = _bindings_within(main)
        while self._read_functions:
            self._function = function = self._read_functions.popitem()[0]
            self.returned[function] = []
            parameters = {n.arg: frozenset([(n, False)]) for n in ast.walk(function.args) if isinstance(n, ast.arg)}
            self._block(function.body, outer | parameters)

    def _block(self, block: Sequence[ast.stmt], names: Names) -> Names | None:
        """Return the bindings in force after statements; None if their end is not reachable."""
        after: Names | None = names
        for statement in block:
            after = None if after is None else self._statement(statement, after)
        return after

    def _statement(self, node: ast.stmt, names: Names) -> Names | None:
        changing = self._changing
        if isinstance(node, ast.For | ast.While):
            bound = _bindings_within(node)
            names = _merged(names, bound)
            self._changing |= bound.keys()
        parts = list(_own_nodes(node))
        walrus = [b for part in parts if isinstance(part, ast.NamedExpr) for b in _bindings(part)]
        self._read(parts, names | {name: frozenset([(value, exact)]) for name, value, exact in walrus})
        for name, value, exact in (binding for part in parts for binding in _bindings(part)):
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
                return None if ends == [None, None] else _merged(*ends)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
                caught = _merged(names, *map(_bindings_within, body))
                ends = [self._block([*body, *orelse], names), *(self._block(h.body, caught) for h in handlers)]
                final = self._block(finalbody, _merged(*ends) or caught)
                return None if all(end is None for end in ends) else final
        if not hasattr(node, "body") and not hasattr(node, "cases"):
            return names
        parents = [node, *getattr(node, "cases", [])]
        blocks = [getattr(parent, field, []) for parent in parents for field in ("body", "orelse")]
        after = _merged(names, *(self._block(block, names) for block in blocks))
        self._changing = changing
        return after

    def _read(self, parts: Sequence[ast.AST], names: Names) -> None:
        """Record the values, helper calls, conditions and effects of one statement."""
        comprehensions = (part for part in parts if isinstance(part, ast.comprehension))
        own = {name for part in comprehensions for name, _, _ in _unpacked(part.target, part)}
        for part in parts:
            if isinstance(part, ast.Name) and part.id not in own:
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
                case ast.Call(func=func, args=args, keywords=keywords):
                    arguments = [*args, *(keyword.value for keyword in keywords)]
                    builtin = func.id if isinstance(func, ast.Name) else ""
                    called = self._helpers_of(func)
                    passed = self._helpers_of(*(() if builtin in CONVERSIONS | PURE else arguments))
                    self.calls |= {(part, name) for name in called | passed}
                    if not called and builtin not in CONVERSIONS | CALLERS | PURE:
                        self.effects += [part] if passed else arguments
                    if any(isinstance(n, ast.Name) and n.id in self._changing for n in ast.walk(part)):
                        self._repeated.add(part)

    def _add_values(self, name: ast.Name, values: frozenset[Binding]) -> None:
        """Record values of a name, and the functions among them. Equal sets are kept as one object."""
        if values <= self._values[name]:
            return
        self._values[name] = self._values[name] | values if self._values[name] else values
        if id(values) not in self._seen:
            self._seen[id(values)] = values
            functions = (value for value, exact in values if exact and isinstance(value, Function))
            self._read_functions |= dict.fromkeys(function for function in functions if function not in self.returned)

    def _helpers_of(self, *nodes: ast.AST) -> frozenset[str]:
        """Return the helpers that names stand for."""
        values = [value for node in nodes for value, exact in self._values.get(node, ()) if exact]
        return frozenset(name.id for name in [*nodes, *values] if isinstance(name, ast.Name)) & self._helpers

    def calls_behind(self, values: Iterable[ast.AST]) -> set[HelperCall]:
        """Return the helper calls whose results these values depend on."""
        queue, seen, followed = list(values), set(), set()
        while queue:
            node = queue.pop()
            if node not in seen:
                seen.add(node)
                queue += ast.iter_child_nodes(node)
                bindings = self._values.get(node, frozenset())
                for value, _ in () if id(bindings) in followed else bindings:
                    queue += self.returned.get(value, [value])
                followed.add(id(bindings))
        return {call for call in self.calls if call[0] in seen}

    def sources(self, values: Iterable[ast.AST]) -> set[Source]:
        """Return the helper calls and names whose unchanged value these may be; WORK for every other value."""
        queue: list[ast.AST | Source] = list(values)
        seen: set[ast.AST | Source] = set()
        while queue:
            node = queue.pop()
            if node not in seen:
                seen.add(node)
                queue += self._unchanged(node) if isinstance(node, ast.AST) else []
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
                if f"{type(op).__name__} {ast.unparse(right)}" in NEUTRAL:
                    return [left]
                swapped = isinstance(op, ast.Add | ast.Mult) and f"{type(op).__name__} {ast.unparse(left)}" in NEUTRAL
                return [right] if swapped else [WORK]
            case ast.ListComp(elt=ast.Name(x), generators=[ast.comprehension(ast.Name(y), value, [])]) if x == y:
                return [value]
            case ast.Call(func=func, args=args, keywords=keywords):
                if called := self._helpers_of(func):
                    return [WORK] if node in self._repeated else [(node, name) for name in called]
                if isinstance(func, ast.Name) and func.id in CONVERSIONS and len(args) + len(keywords) <= 1:
                    return [*args, *(keyword.value for keyword in keywords)]
                functions = [value for value, _ in self._values.get(func, ())]
                if functions and all(function in self.returned for function in functions):
                    return [value for function in functions for value in self.returned[function]]
        return [WORK]


def _merged(*paths: Names | None) -> Names:
    """Return the bindings where several paths meet. Paths that end earlier are None."""
    merged: Names = {}
    for name, bindings in (item for names in paths for item in (names or {}).items()):
        known = merged.setdefault(name, bindings)
        if known is not bindings and not bindings <= known:
            merged[name] = known | bindings
    return merged


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes of a statement, except for the nodes of nested statements."""
    stack: list[ast.AST] = [statement]
    while stack:
        yield (node := stack.pop())
        stack += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]


def _bindings_within(node: ast.AST) -> Names:
    bindings: dict[str, list[Binding]] = defaultdict(list)
    for name, value, exact in (binding for part in ast.walk(node) for binding in _bindings(part)):
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
            yield part.id if isinstance(part, ast.Name) else "", value, part is target


def _bound_names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.MatchMapping(rest=str(name)):
            yield name
        case ast.alias(name=name, asname=alias):
            yield alias or name.split(".")[0]
        case _:
            yield from (name for name, _, _ in _bindings(node))
