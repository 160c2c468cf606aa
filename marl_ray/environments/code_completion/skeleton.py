"""The class to complete: the places of its methods, and the program with methods inserted.

Methods are found by `ast` and moved as text, which keeps comments, decorators and line breaks.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from marl_ray.environments.code_generation.extraction import first_line, parse, without_docstring

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class MethodSlot:
    """A method to write, in the lines `first` to `last` of the skeleton (from 1), including decorators.

    `parameters` is the number of parameters, including `self` or `cls`, `length` the expected number of characters.
    `missing` replaces a missing method: it raises NotImplementedError, so that no test passes without the method.
    """

    name: str
    first: int
    last: int
    parameters: int
    length: int
    decorators: tuple[str, ...]
    missing: str


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A module that defines the class in the lines `first` to `last` (from 1), with members at the indentation `indent`.

    `slots` are the methods to write in source order, `members` the names of all methods, including defined ones.
    """

    class_name: str
    lines: tuple[str, ...]
    first: int
    last: int
    indent: str
    slots: tuple[MethodSlot, ...]
    members: frozenset[str]


@functools.lru_cache(maxsize=256)
def parse_skeleton(source: str, class_name: str, methods: tuple[str, ...], lengths: tuple[int, ...]) -> Skeleton:
    """Parse a skeleton with these methods to write, of these expected lengths. Raises ValueError."""
    node = class_in(source, class_name)
    lines = source.split("\n")
    members = methods_of(node)
    expected = dict(zip(methods, lengths, strict=True))
    slots = [_slot(member, lines, expected[member.name]) for member in members if member.name in expected]
    names = [slot.name for slot in slots]
    for name in methods:
        if names.count(name) != 1:
            raise ValueError(f"the skeleton has the method {name} {names.count(name)} times")
    if not slots:
        raise ValueError("the skeleton has no method to write")
    return Skeleton(
        class_name,
        tuple(lines),
        first_line(node),
        node.end_lineno or node.lineno,
        lines[members[0].lineno - 1][: members[0].col_offset],
        tuple(slots),
        frozenset(member.name for member in members),
    )


def merge_methods(
    skeleton: Skeleton, future: Iterable[str], imports: Iterable[str], methods: Mapping[str, str]
) -> tuple[str, dict[str, int]]:
    """Return the program, and the line on which each method starts.

    `methods`, indented as members, go into their slots, or to the end of the class if they have none. `future` imports
    go first, other `imports` before the class.
    """
    lines = [*future, *skeleton.lines[: skeleton.first - 1], *imports]
    starts = {}
    done = skeleton.first - 1
    for slot in skeleton.slots:
        lines += skeleton.lines[done : slot.first - 1]
        starts[slot.name] = len(lines) + 1
        lines += methods.get(slot.name, slot.missing).split("\n")
        done = slot.last
    lines += skeleton.lines[done : skeleton.last]
    for name in [name for name in methods if name not in starts]:
        starts[name] = len(lines) + 2
        lines += ["", *methods[name].split("\n")]
    lines += skeleton.lines[skeleton.last :]
    return "\n".join(lines).rstrip("\n") + "\n", starts


def class_in(source: str, class_name: str) -> ast.ClassDef:
    """Return the class in a module. Raises ValueError unless the module defines the class exactly once."""
    tree = parse(source)
    if tree is None:
        raise ValueError("the skeleton does not parse")
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name]
    if len(classes) != 1:
        raise ValueError(f"the skeleton defines the class {class_name} {len(classes)} times")
    return classes[0]


def methods_of(node: ast.ClassDef) -> list[FunctionNode]:
    """Return the methods in a class's own body."""
    return [member for member in node.body if isinstance(member, FunctionNode)]


def is_stub(method: FunctionNode) -> bool:
    """Return whether a method is a stub: at most a docstring, `pass`, or `raise NotImplementedError`.

    A constructor with only `pass` is no stub, because there may be nothing to do.
    """
    body = without_docstring(method.body)
    if not body:
        return method.name != "__init__" or not any(isinstance(node, ast.Pass) for node in method.body)
    names = [node.id for node in ast.walk(body[0]) if isinstance(node, ast.Name)]
    return isinstance(body[0], ast.Raise) and names == ["NotImplementedError"]


def _slot(method: FunctionNode, lines: Sequence[str], length: int) -> MethodSlot:
    indent = lines[method.lineno - 1][: method.col_offset]
    stub = ast.parse(f"def {method.name}(self):\n raise NotImplementedError({method.name!r})").body[0]
    assert isinstance(stub, ast.FunctionDef)
    stub.args, stub.decorator_list = method.args, method.decorator_list
    return MethodSlot(
        method.name,
        first_line(method),
        method.end_lineno or method.lineno,
        _count(method.args),
        length,
        tuple(f"@{ast.unparse(decorator)}" for decorator in method.decorator_list),
        "\n".join(indent + line for line in ast.unparse(stub).split("\n")),
    )


def _count(arguments: ast.arguments) -> int:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return len(named) + sum(rest is not None for rest in (arguments.vararg, arguments.kwarg))
