"""The class that is to be completed: where its methods stand, and the program that written methods make of it.

Methods are found by `ast` and moved as text, so that comments, decorators and line numbers stay as they were written.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from marl_ray.environments.code_generation.extraction import parse, without_docstring

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class MethodSlot:
    """A method that is to be written, in the lines `first` to `last` of the skeleton (from 1), decorators included.

    `parameters` counts all, `self` or `cls` too. `length` is how many characters it is expected to have. `missing` is
    what stands there if nobody writes it: it raises NotImplementedError, so that no test passes by it.
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
    """A module that defines the class, in the lines `first` to `last` (from 1), whose members have this `indent`.

    `slots` are in the order of the lines. `members` are the names of all methods, those that are given too.
    """

    class_name: str
    lines: tuple[str, ...]
    first: int
    last: int
    indent: str
    slots: tuple[MethodSlot, ...]
    members: frozenset[str]


@functools.lru_cache(maxsize=256)
def skeleton_of(source: str, class_name: str, methods: tuple[str, ...], lengths: tuple[int, ...]) -> Skeleton:
    """The skeleton in a source in which these methods are to be written, `lengths` long. Raises ValueError."""
    node = class_in(source, class_name)
    lines = source.split("\n")
    members = methods_of(node)
    expected = dict(zip(methods, lengths, strict=True))
    slots = [_slot(member, lines, expected[member.name]) for member in members if member.name in expected]
    found = [slot.name for slot in slots]
    for name in methods:
        if found.count(name) != 1:
            raise ValueError(f"the skeleton has the method {name} {found.count(name)} times")
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


def merged(
    skeleton: Skeleton, future: Iterable[str], imports: Iterable[str], methods: Mapping[str, str]
) -> tuple[str, dict[str, int]]:
    """The program: `methods`, indented as members, in their slots, those that have none at the end of the class;
    `imports` before it, `future` first. The second part says on which line each method begins, a missing one too."""
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
    """The class that a module defines. Raises ValueError."""
    tree = parse(source)
    if tree is None:
        raise ValueError("the skeleton does not parse")
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name]
    if len(found) != 1:
        raise ValueError(f"the skeleton defines the class {class_name} {len(found)} times")
    return found[0]


def methods_of(node: ast.ClassDef) -> list[FunctionNode]:
    """The methods in a class's own body."""
    return [member for member in node.body if isinstance(member, FunctionNode)]


def is_stub(method: FunctionNode) -> bool:
    """Whether a method of a skeleton is to be written: it has a docstring at most, or says so.

    `pass` says so too, but in a constructor, where it may well be all there is to do.
    """
    body = without_docstring(method.body)
    if not body:
        return method.name != "__init__" or not any(isinstance(node, ast.Pass) for node in method.body)
    names = [node.id for node in ast.walk(body[0]) if isinstance(node, ast.Name)]
    return isinstance(body[0], ast.Raise) and names == ["NotImplementedError"]


def first_line(node: FunctionNode | ast.ClassDef) -> int:
    """The line on which a definition begins, decorators included."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


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
