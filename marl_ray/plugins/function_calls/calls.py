"""Function calls: reading them from an answer, and comparing them with the expected calls.

Answers are untrusted text. They are parsed by `ast` and `json`, never executed, and raise nothing.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from marl_ray.environments.code_generation.extraction import normalise_text, parse

MAX_CALLS = 64
"""Maximum calls that are read from one answer."""
MAX_CALL_CHARS = 2000
"""Maximum characters of one call in an answer that does not parse as a whole."""
TOLERANCE = 1e-6
"""Smallest difference of two numbers that are not equal."""

_FENCED = re.compile(r"```[ \t]*\w*[ \t]*\n(.*?)```", re.DOTALL)
_CONSTANTS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class FunctionCall:
    """A call by keyword. In an expected call, each argument has a list of accepted values."""

    name: str
    arguments: Mapping[str, Any]

    @cached_property
    def key(self) -> tuple[str, Any]:
        """The call in a normal form: equal for calls that differ in order, case and white space alone."""
        return self.name, normal_form(self.arguments)

    def __str__(self) -> str:
        arguments = []
        for name, value in self.arguments.items():
            arguments.append(f"{name}={value!r}")
        text = f"{self.name}({', '.join(arguments)})"
        return text.encode("utf-8", "backslashreplace").decode()  # names in JSON may have halves of characters


def normal_form(value: Any) -> Any:
    """Return a hashable value: texts in lower case without outer quotes and repeated white space.

    Example:
        >>> normal_form({"b": [1, "'New  York'"], "a": True})
        (('a', True), ('b', (1, 'new york')))
    """
    if isinstance(value, Mapping):
        parts = []
        for name, part in value.items():
            parts.append((str(name), normal_form(part)))
        # Sorted by name alone: values need no order.
        parts.sort(key=lambda part: part[0])
        return tuple(parts)
    if isinstance(value, list | tuple):
        return tuple(map(normal_form, value))
    if value is None or isinstance(value, int | float):
        return value
    return " ".join(str(value).strip().strip("\"'").split()).lower()


def unique(calls: Iterable[FunctionCall]) -> list[FunctionCall]:
    """Return the calls without repetitions: the first one of equal calls, at the place of the last one."""
    by_key: dict[Any, FunctionCall] = {}
    for call in calls:
        by_key[call.key] = by_key.pop(call.key, call)
    return list(by_key.values())


def similarity(call: FunctionCall, expected: FunctionCall) -> tuple[float, bool]:
    """Return the share of right arguments, reduced by arguments that are not expected, and whether the call is right.

    An expected argument may be left out if one of its accepted values is an empty text, as in BFCL.
    """
    if call.name != expected.name:
        return 0.0, False
    wanted = expected.arguments
    if not wanted:
        if call.arguments:
            return 0.7, False
        return 1.0, True
    right = sum(_accepted(call.arguments, name, values) for name, values in wanted.items())
    more = len(call.arguments.keys() - wanted.keys())
    share = right / len(wanted) * len(wanted) / (len(wanted) + more)
    return share, right == len(wanted) and not more


def match(calls: Sequence[FunctionCall], expected: Sequence[FunctionCall]) -> tuple[float, frozenset[int]]:
    """Assign calls to expected calls, most similar first. Return the mean similarity per expected call, and the indices
    of calls that are right."""
    pairs: list[tuple[float, bool, int, int]] = []
    for number, call in enumerate(calls):
        for place, wanted in enumerate(expected):
            pairs.append((*similarity(call, wanted), number, place))
    total = 0.0
    right = set()
    used: set[int] = set()
    filled: set[int] = set()
    for share, is_right, number, place in sorted(pairs, key=lambda pair: pair[:2], reverse=True):
        if share > 0 and number not in used and place not in filled:
            total += share
            used.add(number)
            filled.add(place)
            if is_right:
                right.add(number)
    return total / max(1, len(expected)), frozenset(right)


def read_calls(answer: str, functions: str) -> list[FunctionCall]:
    """Return the calls in an answer: JSON, or Python calls, one per line or in a list. In an answer that is neither,
    for example because it was cut, calls of `functions` (JSON text of their schemas) are found one by one.

    Example:
        >>> [str(call) for call in read_calls("f(a=1)\\ng.h(b=tru", '[{"name": "f"}]')]
        ['f(a=1)']
    """
    text = normalise_text(answer).strip()
    blocks = _FENCED.findall(text)
    if blocks:
        text = "\n".join(block.strip() for block in blocks)
    parameters = _parameters(functions)
    calls = list(_from_json(text))
    if not calls:
        calls += _from_python(text, parameters)
    if not calls:
        for span in _spans(text, parameters):
            calls += _from_python(span, parameters)
    if not calls and "[" in text:  # a list within prose
        calls += _from_json(text[text.index("[") : text.rfind("]") + 1])
    return calls[:MAX_CALLS]


@lru_cache(maxsize=4096)
def expected_calls(calls: str) -> tuple[FunctionCall, ...]:
    """Return the expected calls of a task from JSON text: a list of `{name: {argument: [accepted values]}}`."""
    expected = []
    for call in json.loads(calls):
        for name, arguments in call.items():
            expected.append(FunctionCall(name, arguments))
    return tuple(expected)


@lru_cache(maxsize=4096)
def _parameters(functions: str) -> dict[str, list[str]]:
    """Return the parameters of each function in the order of arguments by position: required ones first."""
    names: dict[str, list[str]] = {}
    for function in json.loads(functions):
        schema = function.get("parameters") or {}
        required = schema.get("required") or ()
        optional = schema.get("properties") or ()
        names[function["name"]] = list(dict.fromkeys([*required, *optional]))
    return names


def _accepted(arguments: Mapping[str, Any], name: str, values: Any) -> bool:
    """Return whether an argument has one of the accepted values."""
    if not isinstance(values, list):
        values = [values]
    if name not in arguments:
        return "" in values
    return any(_equal(arguments[name], accepted) for accepted in values)


def _equal(value: Any, wanted: Any) -> bool:
    """Return whether a value is the wanted one. Entries of a wanted object are lists of accepted values."""
    if isinstance(wanted, Mapping) and isinstance(value, Mapping):
        if not value.keys() <= wanted.keys():
            return False
        return all(_accepted(value, name, accepted) for name, accepted in wanted.items())
    if isinstance(wanted, list) and isinstance(value, list):
        return len(value) == len(wanted) and all(map(_equal, value, wanted))
    first = normal_form(value)
    second = normal_form(wanted)
    if isinstance(first, int | float) and isinstance(second, int | float):
        try:
            return abs(first - second) < TOLERANCE
        except OverflowError:  # an integer beyond the range of floats
            return False
    return bool(first == second)


def _from_json(text: str) -> Iterator[FunctionCall]:
    """Yield the calls in JSON text: objects with `name` (or `function`) and `arguments` (or `parameters`), or `{name:
    arguments}`, alone or in lists."""
    try:
        values = [json.loads(text)]
    except (ValueError, RecursionError):
        return
    while values:
        value = values.pop(0)
        if isinstance(value, list):
            values[:0] = value
        elif isinstance(value, dict) and value:
            name = value.get("name", value.get("function"))
            arguments = value.get("arguments", value.get("parameters")) or {}
            if name is None and len(value) == 1:
                ((name, arguments),) = value.items()
            if isinstance(name, str) and isinstance(arguments, dict):
                yield FunctionCall(name, arguments)


def _from_python(text: str, parameters: Mapping[str, Sequence[str]]) -> Iterator[FunctionCall]:
    """Yield the calls that are statements, or elements of a list or tuple that is a statement."""
    tree = parse(text)
    for statement in tree.body if tree is not None else ():
        if not isinstance(statement, ast.Expr):
            continue
        nodes = [statement.value]
        if isinstance(statement.value, ast.List | ast.Tuple):
            nodes = statement.value.elts
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            name = _dotted(node.func)
            if not name:
                continue
            arguments = {}
            for parameter, value in zip(parameters.get(name, ()), node.args, strict=False):
                arguments[parameter] = _literal(value)
            for keyword in node.keywords:
                if keyword.arg:  # `**arguments` has no name
                    arguments[keyword.arg] = _literal(keyword.value)
            yield FunctionCall(name, arguments)


def _spans(text: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the texts from a function's name to the parenthesis that closes its call."""
    names = sorted(map(re.escape, names), key=len, reverse=True)
    if not names:
        return
    opening = re.compile(rf"(?<![\w.])(?:{'|'.join(names)})\s*\(")
    end = 0
    for _ in range(2 * MAX_CALLS):
        found = opening.search(text, end)
        if found is None:
            return
        start = found.start()
        end = found.end()
        depth = 1
        quote = ""
        escaped = False
        for place in range(end, min(len(text), start + MAX_CALL_CHARS)):
            character = text[place]
            if quote:
                if character == quote and not escaped:
                    quote = ""
                escaped = character == "\\" and not escaped
            elif character in "\"'":
                quote = character
            elif character in "([{":
                depth += 1
            elif character in ")]}":
                depth -= 1
                if depth == 0:
                    end = place + 1
                    yield text[start:end]
                    break


def _dotted(node: ast.expr) -> str:
    """Return a dotted name, or an empty string."""
    if isinstance(node, ast.Attribute):
        parent = _dotted(node.value)
        if parent:
            return f"{parent}.{node.attr}"
    if isinstance(node, ast.Name):
        return node.id
    return ""


def _literal(node: ast.expr) -> Any:
    """Return a literal's value, or the source text of any other expression."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return list(map(_literal, node.elts))
    if isinstance(node, ast.Dict) and None not in node.keys:
        entries = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None:  # as `**more` has no key
                entries[str(_literal(key))] = _literal(value)
        return entries
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        number = node.operand.value
        if isinstance(number, int | float):
            return -number
    if isinstance(node, ast.Name):
        return _CONSTANTS.get(node.id, node.id)
    return ast.unparse(node)
