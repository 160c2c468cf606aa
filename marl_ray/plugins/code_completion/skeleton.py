"""The class to complete: the places of its methods, the program with methods inserted, and strategies that assign
methods to agents.

Methods are found by `ast` and moved as text, which keeps comments, decorators and line breaks. A strategy depends only
on the class, so the assignment of a task is the same in every episode.
"""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from marl_ray.environments.code_generation.extraction import first_line, parse, without_docstring
from marl_ray.sandbox import syntax_tree

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class MethodSlot:
    """A method to write, in the lines `first` to `last` of the skeleton (from 1), including decorators. `parameters` is
    the number of parameters, including `self` or `cls`, `length` the expected number of characters. `missing` replaces
    a missing method: it raises NotImplementedError, so that no test passes without the method."""

    name: str
    first: int
    last: int
    parameters: int
    length: int
    decorators: tuple[str, ...]
    missing: str


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A module that defines the class in the lines `first` to `last` (from 1), with members at the indentation
    `indent`. `slots` are the methods to write in source order, `members` the names of all methods, including defined
    ones."""

    class_name: str
    lines: tuple[str, ...]
    first: int
    last: int
    indent: str
    slots: tuple[MethodSlot, ...]
    members: frozenset[str]

    @property
    def names(self) -> list[str]:
        """The names of the methods to write."""
        return [slot.name for slot in self.slots]


@functools.lru_cache(maxsize=256)
def parse_skeleton(source: str, class_name: str, methods: tuple[str, ...], lengths: tuple[int, ...]) -> Skeleton:
    """Parse a skeleton with these methods to write, of these expected lengths. Raises ValueError."""
    node = class_in(source, class_name)
    lines = source.split("\n")
    members = methods_of(node)
    expected = dict(zip(methods, lengths, strict=True))
    names = [member.name for member in members]
    for name in methods:
        if names.count(name) != 1:
            raise ValueError(f"the skeleton has the method {name} {names.count(name)} times")
    slots = []
    for member in members:
        if member.name in expected:
            slots.append(_slot(member, lines, expected[member.name]))
    if not slots:
        raise ValueError("the skeleton has no method to write")
    return Skeleton(
        class_name,
        tuple(lines),
        first_line(node),
        node.end_lineno or node.lineno,
        lines[members[0].lineno - 1][: members[0].col_offset],
        tuple(slots),
        frozenset(names),
    )


def merge_methods(
    skeleton: Skeleton, future: Iterable[str], imports: Iterable[str], methods: Mapping[str, str]
) -> tuple[str, dict[str, int]]:
    """Return the program, and the line on which each method starts. `methods`, indented as members, go into their
    slots, or to the end of the class if they have none. `future` imports go first, other `imports` before the class."""
    lines = [*future, *skeleton.lines[: skeleton.first - 1], *imports]
    starts = {}
    done = skeleton.first - 1
    for slot in skeleton.slots:
        lines += skeleton.lines[done : slot.first - 1]
        starts[slot.name] = len(lines) + 1
        lines += methods.get(slot.name, slot.missing).split("\n")
        done = slot.last
    lines += skeleton.lines[done : skeleton.last]
    for name, code in methods.items():
        if name not in starts:
            starts[name] = len(lines) + 2
            lines += ["", *code.split("\n")]
    lines += skeleton.lines[skeleton.last :]
    return "\n".join(lines).rstrip("\n") + "\n", starts


def class_in(source: str, class_name: str) -> ast.ClassDef:
    """Return the class in a module. Raises ValueError unless the module defines the class exactly once."""
    tree = parse(source)
    if tree is None:
        raise ValueError("the skeleton does not parse")
    classes = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            classes.append(node)
    if len(classes) != 1:
        raise ValueError(f"the skeleton defines the class {class_name} {len(classes)} times")
    return classes[0]


def methods_of(node: ast.ClassDef) -> list[FunctionNode]:
    """Return the methods in a class's own body."""
    return [member for member in node.body if isinstance(member, FunctionNode)]


def attributes_in(tree: ast.AST) -> frozenset[str]:
    """Return the names of all attributes in a tree, which include the called methods."""
    return frozenset(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))


def is_stub(method: FunctionNode) -> bool:
    """Return whether a method is a stub: at most a docstring, `pass`, or `raise NotImplementedError`. A constructor
    with only `pass` is no stub, because there may be nothing to do."""
    body = without_docstring(method.body)
    if not body:
        return method.name != "__init__" or not any(isinstance(node, ast.Pass) for node in method.body)
    if not isinstance(body[0], ast.Raise):
        return False
    names = [node.id for node in ast.walk(body[0]) if isinstance(node, ast.Name)]
    return names == ["NotImplementedError"]


def _slot(method: FunctionNode, lines: Sequence[str], length: int) -> MethodSlot:
    indent = lines[method.lineno - 1][: method.col_offset]
    stub = syntax_tree(f"def {method.name}(self):\n raise NotImplementedError({method.name!r})").body[0]
    assert isinstance(stub, ast.FunctionDef)
    stub.args = method.args
    stub.decorator_list = method.decorator_list
    arguments = method.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    parameters += filter(None, (arguments.vararg, arguments.kwarg))
    decorators = [f"@{ast.unparse(decorator)}" for decorator in method.decorator_list]
    missing = textwrap.indent(ast.unparse(stub), indent)
    return MethodSlot(
        method.name,
        first_line(method),
        method.end_lineno or method.lineno,
        len(parameters),
        length,
        tuple(decorators),
        missing,
    )


def param_count(slots: Sequence[MethodSlot], num_agents: int) -> list[int]:
    """Assign methods by number of parameters, including `self` or `cls`: one parameter to the first agent, two to the
    second, and so on, with all larger numbers to the last agent. This is CoMLRL's strategy for two agents."""
    return [min(max(1, slot.parameters), num_agents) - 1 for slot in slots]


def round_robin(slots: Sequence[MethodSlot], num_agents: int) -> list[int]:
    return [number % num_agents for number in range(len(slots))]


def balanced(slots: Sequence[MethodSlot], num_agents: int) -> list[int]:
    """Assign methods by expected length, longest first, each to the agent with the least to write so far. Graham's LPT
    rule (SIAM J. Appl. Math. 17, 1969): the longest share is at most 4/3 of the optimum."""
    load = [0] * num_agents
    agents = [0] * len(slots)
    for number in sorted(range(len(slots)), key=lambda number: (-slots[number].length, number)):
        agents[number] = load.index(min(load))
        load[agents[number]] += slots[number].length
    return agents


STRATEGIES: dict[str, Callable[[Sequence[MethodSlot], int], list[int]]] = {
    "param_count": param_count,
    "round_robin": round_robin,
    "balanced": balanced,
}
"""The strategies by their name in `code_completion.strategy`. Each returns one agent (from 0) per method."""


def assign_methods(strategy: str, slots: Sequence[MethodSlot], num_agents: int) -> tuple[tuple[str, ...], ...]:
    """Return the names of each agent's methods, in source order."""
    names: list[list[str]] = [[] for _ in range(num_agents)]
    for slot, agent in zip(slots, STRATEGIES[strategy](slots, num_agents), strict=True):
        names[agent].append(slot.name)
    return tuple(map(tuple, names))
