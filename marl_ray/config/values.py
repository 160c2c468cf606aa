"""Values of settings: their types and bounds, and their parsing from YAML files and `--override key=value`."""

from __future__ import annotations

import ast
import collections.abc
import datetime
import functools
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, Union

import yaml
from annotated_types import Ge, Gt, Le, Lt

from marl_ray.core.errors import UserError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

PositiveInt = Annotated[int, Gt(0)]
NonNegativeInt = Annotated[int, Ge(0)]
OneTo100 = Annotated[int, Ge(1), Le(100)]
Port = Annotated[int, Ge(0), Le(65535)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
AtLeastOne = Annotated[float, Ge(1)]
Fraction = Annotated[float, Gt(0), Le(1)]
Discount = Annotated[float, Ge(0), Le(1)]
Decay = Annotated[float, Ge(0), Lt(1)]
Temperature = Annotated[float, Ge(0.01), Le(2)]
"""vLLM samples at 0.01 below that, and the learner would not."""
TemperatureOrGreedy = Annotated[float, Ge(0), Le(2)]


T = TypeVar("T")
OR_DEFAULT = "null: the default"
DERIVED = "null: derived"
OrDefault = Annotated[T, OR_DEFAULT]
"""A setting for which null in a file means the default."""
Derived = Annotated[T, DERIVED]
"""A setting whose default in a file is null, and is then derived from other settings."""


class Section:
    """Base of the sections of a config. The docstring below a field is the field's description."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    @property
    def added_agents(self) -> int:
        """Number of agents that the settings of a plug-in add to a team, such as frozen partners."""
        return 0


INVALID_TEXT = re.compile("[\0\ud800-\udfff]")
"""Characters that no file, path or model accepts."""
WHOLE_EXPONENT = re.compile(r"[-+\d.]+e\+?\d+", re.IGNORECASE)
"""A whole number such as 1e6, which YAML reads as text."""
TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "object": "a mapping",
}
BOUNDS = {"exclusiveMinimum": "above", "minimum": "of at least", "exclusiveMaximum": "below", "maximum": "at most"}
BOUND_ERRORS = {"greater_than": "above", "greater_than_equal": "at least", "less_than": "below"} | {
    "less_than_equal": "at most"
}


def convert(value: Any, hint: Any, key: str, or_null: bool = False) -> Any:
    """Return `value` as an instance of the type `hint`. Text is accepted for numbers (YAML 1.1 reads 3e-5 as text),
    `a,b` for lists, and any case for options. Raises UserError that names `key`, and null as a value if `or_null`."""
    from pydantic import ValidationError  # on first use: actors import the settings but never load a config

    expected = ""
    try:
        return _adapter(hint).validate_python(_unambiguous(value, hint))
    except ValidationError as error:
        expected = _broken_bound(error)
    except TypeError:
        pass
    if not expected:
        expected = describe(hint | None if or_null else hint)
    if isinstance(value, str) and INVALID_TEXT.search(value):
        expected = "text without a NUL character or half of a surrogate pair"
    raise UserError(f"{key} should be {expected}, got {value!r}")


def _broken_bound(error: ValidationError) -> str:
    """Return the first bound that a value breaks, such as `at least 1`; nothing if it has the wrong type."""
    for detail in error.errors():
        words = BOUND_ERRORS.get(detail["type"])
        if words:
            # Pydantic gives the bound as the only entry of ctx: {"ge": 1}.
            (bound,) = detail["ctx"].values()
            return f"{words} {bound:g}"
    return ""


def accepts_null(hint: Any) -> bool:
    """Return whether None is a value of the type."""
    return type(None) in typing.get_args(hint)


def describe(hint: Any) -> str:
    """Return a type and its bounds in words, such as `a whole number above 0, or null`."""
    return describe_schema(json_schema_of(hint))


def describe_schema(schema: Mapping[str, Any]) -> str:
    """Return the type in a JSON Schema in words."""
    if "anyOf" in schema:
        *first, last = map(describe_schema, schema["anyOf"])
        text = ", ".join(first)
        # `a number, or null`, but `8 or null`.
        if " " in text:
            text += ","
        return f"{text} or {last}"
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        items = {"number": "[1.5, 0.5]", "integer": "[8, 1]"}
        return "a list like " + items.get(schema["items"].get("type"), "[a, b]")
    bounds = []
    for name, word in BOUNDS.items():
        if name in schema:
            bounds.append(f"{word} {schema[name]:g}")
    kind = TYPES.get(schema["type"], schema["type"])
    return f"{kind} {' and '.join(bounds)}".strip()


@functools.cache
def json_schema_of(hint: Any) -> Mapping[str, Any]:
    return _adapter(hint).json_schema()


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    # A section has its own; pydantic refuses a second one.
    if hasattr(hint, "__pydantic_config__"):
        return TypeAdapter(hint)
    return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False))


def _unambiguous(value: Any, hint: Any) -> Any:
    """Return `value` in a form that pydantic converts as intended. Raises TypeError for a value of another type."""
    members = list(_members(hint))
    kinds = {typing.get_origin(member) or member for member in members}
    word = _word(value)
    if word is not None and word in _options(members):
        return word
    if isinstance(value, bool) and kinds & {int, float}:
        raise TypeError
    if type(value) is int and bool in kinds:
        raise TypeError
    if isinstance(value, str) and INVALID_TEXT.search(value):
        raise TypeError
    if type(value) is int and str in kinds:  # a name that is a number
        return str(value)
    if type(value) is datetime.date and str in kinds:  # YAML reads 2026-01-31 as a date
        return value.isoformat()
    if isinstance(value, str) and int in kinds and WHOLE_EXPONENT.fullmatch(value):
        return float(value)
    for member in members:
        if type(value) in kinds:  # an option that needs no conversion, beside a list of the same
            return value
        if typing.get_origin(member) is tuple and not (str in kinds and isinstance(value, str)):
            return _list(value, typing.get_args(member)[0], is_of_numbers=bool(kinds & {int, float}))
        if typing.get_origin(member) is collections.abc.Mapping and isinstance(value, dict):
            return _mapping(value, *typing.get_args(member))
    return value


def _word(value: Any) -> str | None:
    """Return a text in lower case, `none` for null (which the bare word none is in YAML), and None for other values."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value.lower()
    return None


def _options(members: Sequence[Any]) -> set[Any]:
    """Return the values of the Literal types among the members of a union."""
    options: set[Any] = set()
    for member in members:
        if typing.get_origin(member) is Literal:
            options.update(typing.get_args(member))
    return options


def _list(value: Any, item: Any, is_of_numbers: bool) -> Any:
    """Return a value as a list of items: a text of an override at its commas, and a number alone as one item."""
    if isinstance(value, str) and value.strip() and ("," in value or not is_of_numbers):
        value = [part.strip() for part in value.split(",")]
    if type(value) in (int, float):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    return [_unambiguous(part, item) for part in value]


def _mapping(value: Mapping[Any, Any], key: Any, entry: Any) -> dict[Any, Any]:
    return {_unambiguous(name, key): _unambiguous(inner, entry) for name, inner in value.items()}


def _members(hint: Any) -> Iterator[Any]:
    if typing.get_origin(hint) in (Union, UnionType):
        for option in typing.get_args(hint):
            yield from _members(option)
    elif typing.get_origin(hint) is Annotated:
        yield typing.get_args(hint)[0]
    else:
        yield hint


MAX_DEPTH = 50
"""Maximum nesting of a YAML text. Settings have five levels."""


def parse_overrides(items: list[str]) -> dict[str, Any]:
    """Return the values of `key=value` strings by key, parsed by `parse_value`. Raises UserError."""
    result = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise UserError(f"override '{item}' is not of the form section.key=value")
        result[key.strip()] = parse_value(text.strip())
    return result


def parse_value(text: str) -> Any:
    """Parse a Python or YAML literal (3e-5, -2, True, none, [1.5,0.5], 'quoted') and return any other text as is.
    Raises UserError for a list or mapping that is not valid YAML."""
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
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"config {path} is not a text file") from None
    except ValueError:
        raise UserError(f"config {str(path)!r} is not a path: it has a NUL character") from None
    except OSError as error:
        hint = ""
        near = sorted(map(str, path.parent.glob("*.yaml")))
        if near:
            hint = f"; files in this folder: {', '.join(near)}"
        raise UserError(f"config {path} cannot be read: {error.strerror}{hint}") from None
    tree = _parse(text, f"{path} is not valid YAML")
    if not isinstance(tree, dict):
        raise UserError(f"{path} contains no settings: it should be a YAML mapping of sections")
    return tree


def _parse(text: str, failed: str) -> Any:
    """Parse YAML. Raises UserError that begins with `failed` and names the position of the error."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None)
        if mark is None or not problem:
            raise UserError(f"{failed}: {' '.join(str(error).split())[:200]}") from None
        raise UserError(f"{failed}: line {mark.line + 1}, column {mark.column + 1}: {problem}") from None


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
            raise yaml.MarkedYAMLError(problem=f"nested more than {MAX_DEPTH} deep", problem_mark=mark)
        # An alias names an anchor, and opens none.
        opened = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            opened = None
        self._open.append(opened)
        node = super().compose_node(parent, index)
        self._open.pop()
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):  # an impossible date, or text with a tag such as !!bool
            problem = f"{node.value!r} is not a valid {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(problem=f"'{key.value}' is given twice", problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)
