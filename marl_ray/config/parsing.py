"""Parsing of YAML files and of `--override key=value`. Errors name the line and column."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import yaml

from marl_ray.core.errors import UserError

MAX_DEPTH = 50
"""Maximum nesting of a YAML text. Settings have five levels."""


def parse_overrides(items: list[str]) -> dict[str, Any]:
    """Return a dictionary of `key=value` strings, with values parsed by `parse_value`. Raises UserError."""
    result = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise UserError(f"override '{item}' is not of the form section.key=value")
        result[key.strip()] = parse_value(text.strip())
    return result


def parse_value(text: str) -> Any:
    """Parse a Python or YAML literal (3e-5, -2, True, none, [1.5,0.5], 'quoted'). Any other text is returned as is.

    Raises UserError for a list or mapping that is not valid YAML.
    """
    words = {"true": True, "false": False, "none": None, "null": None, "~": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # the last three: odd keys, deep nesting
        pass
    if text.startswith(("[", "{")):
        value = _parse(text, f"value {text[:80]} cannot be read")
        if isinstance(value, dict) and any(v is None and ":" in str(k) for k, v in value.items()):
            raise UserError(f"value {text} cannot be read: a space is missing after a colon")
        return value
    return text


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file. Raises UserError."""
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        raise UserError(f"config {path} is not a text file") from None
    except ValueError:
        raise UserError(f"config {str(path)!r} is not a path: it has a NUL character") from None
    except OSError as error:
        near = sorted(str(p) for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        hint = f"; files in this folder: {', '.join(near)}" if near else ""
        raise UserError(f"config {path} cannot be read: {error.strerror}{hint}") from None
    tree = _parse(text, f"{path} is not valid YAML")
    if not isinstance(tree, dict):
        raise UserError(f"{path} contains no settings: it should be a YAML mapping of sections")
    return tree


def _parse(text: str, failed: str) -> Any:
    """Parse YAML. Raises UserError that begins with `failed`."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{failed}: {_problem(error)}") from None


class _Loader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys, recursive anchors and deep nesting, with the position of the error."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._open: list[str | None] = []
        """Anchors of the enclosing nodes, outermost first; None for a node without an anchor."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        mark: Any = event.start_mark
        if isinstance(event, yaml.AliasEvent) and event.anchor in self._open:
            raise yaml.MarkedYAMLError(problem=f"'*{event.anchor}' is inside itself", problem_mark=mark)
        if len(self._open) == MAX_DEPTH:
            problem = f"nested more than {MAX_DEPTH} deep"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        self._open.append(None if isinstance(event, yaml.AliasEvent) else event.anchor)
        node = super().compose_node(parent, index)
        self._open.pop()
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):  # an impossible date, or text with a tag such as !!bool
            kind = node.tag.rpartition(":")[2]
            raise yaml.MarkedYAMLError(
                problem=f"{node.value!r} is not a valid {kind}", problem_mark=node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(problem=f"'{key.value}' is given twice", problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def _problem(error: yaml.YAMLError) -> str:
    """Return the message and position of a YAML error in one line."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or not problem:
        return " ".join(str(error).split())[:200]
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
