"""JSON schemas that constrain completions, and their check before anything is sampled."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from typing import Any

from marl_ray.core.errors import UserError
from marl_ray.core.text import excerpt

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
"""The schema of all JSON objects."""
IGNORED = (
    *("multipleOf", "uniqueItems", "contains", "minContains", "maxContains", "format"),
    *("patternProperties", "propertyNames", "unevaluatedProperties"),
)
"""Keywords that xgrammar ignores, or ignores beside other keywords, so that vLLM refuses them."""
MAX_LEVELS = 30
NAMED = ("properties", "$defs", "definitions")
"""Keywords whose values have schemas by name."""


def schema_text(schema: Mapping[str, Any]) -> str:
    """Return a schema as it is sent to engines and learners; "" for an empty schema, which constrains nothing."""
    return json.dumps(schema) if schema else ""


def check_json_schema(schema: Mapping[str, Any]) -> None:
    """Raise UserError for a schema that engines cannot enforce. An empty schema constrains nothing."""
    if not schema:
        return
    for keyword, value in _keywords(schema, 0):
        if keyword in IGNORED:
            raise UserError(f"{keyword} cannot be enforced: leave it out")
        if keyword == "allOf" and isinstance(value, list) and len(value) > 1:
            raise UserError("allOf with several schemas cannot be enforced: merge them")
    if importlib.util.find_spec("xgrammar") is None:  # it comes with vLLM, which a driver need not have
        return
    import xgrammar

    try:
        xgrammar.Grammar.from_json_schema(json.dumps(schema))
    except (RuntimeError, ValueError) as error:
        raise UserError(f"no JSON schema that engines can enforce: {excerpt(error)}") from None


def _keywords(schema: Any, level: int) -> Iterator[tuple[str, Any]]:
    """Yield the keywords of a schema and of all schemas in it, with their values."""
    if level > MAX_LEVELS:
        raise UserError(f"it has more than {MAX_LEVELS} levels: simplify it")
    if isinstance(schema, list):
        for item in schema:
            yield from _keywords(item, level + 1)
    if not isinstance(schema, Mapping):
        return
    if "pattern" in schema and ("minLength" in schema or "maxLength" in schema):
        raise UserError("pattern and a length cannot be enforced together: leave one of them out")
    for keyword, value in schema.items():
        yield keyword, value
        if keyword in NAMED and isinstance(value, Mapping):
            for named in value.values():
                yield from _keywords(named, level + 1)
        elif keyword not in ("const", "enum", "default", "examples"):
            yield from _keywords(value, level + 1)
