"""Flags of a command, made from the dataclass of its request."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from marl_ray.cli.parser import Parser, positive, positive_number
from marl_ray.sandbox import syntax_tree

T = TypeVar("T")
CONVERTERS = {int: positive, float: positive_number}
"""Conversion of a flag's text by the type of its field, where the type itself accepts more than a request does."""
METAVARS = {int: "N", Path: "FILE"}


def add_request_flags(parser: Parser, request: type) -> None:
    """Add a flag per field that has a docstring, which is the flag's help.

    Annotations of a field may give another metavariable, and another conversion of the text.

    Example: `to: Annotated[Path, "DIR"]`, `port: Annotated[int, int]`
    """
    descriptions = field_docstrings(request)
    hints = get_type_hints(request, include_extras=True)
    for field in dataclasses.fields(request):
        if field.name in descriptions:
            _add_flag(parser, field, hints[field.name], descriptions[field.name])


def request_of(request: type[T], options: argparse.Namespace, **further: Any) -> T:
    """Return the request with the values of its flags, and `further` fields, which win over flags."""
    given = vars(options)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(request):  # type: ignore[arg-type]
        if field.name in given:
            values[field.name] = given[field.name]
    return request(**values | further)


def field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class. Python keeps them in the source only."""
    (definition,) = syntax_tree(textwrap.dedent(inspect.getsource(cls))).body
    found: dict[str, str] = {}
    name = ""
    for node in definition.body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            found[name] = " ".join(str(node.value.value).split())
    return found


def _add_flag(parser: Parser, field: dataclasses.Field[Any], hint: Any, description: str) -> None:
    flag = "--" + field.name.replace("_", "-")
    description = description.rstrip(".")
    if hint is bool:
        parser.add_argument(flag, action="store_true", help=description)
        return
    annotations: list[Any] = []
    if get_origin(hint) is Annotated:
        hint, *annotations = get_args(hint)
    # Of `Path | None`, `Path | Sequence[dict]` and `Sequence[Path]`, a command line gives paths.
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    kind = kinds[0] if kinds else hint
    settings: dict[str, Any] = {
        "metavar": METAVARS.get(kind, field.name.upper()),
        "type": CONVERTERS.get(kind, kind),
    }
    for annotation in annotations:
        settings["metavar" if isinstance(annotation, str) else "type"] = annotation
    if get_origin(hint) is Sequence:
        settings["nargs"] = "+"
    if field.default is dataclasses.MISSING:
        settings["required"] = True
    else:
        settings["default"] = field.default
        if field.default is not None:
            description += f"; default: {field.default}"
    parser.add_argument(flag, help=description, **settings)
