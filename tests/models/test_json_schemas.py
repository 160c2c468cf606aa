"""Schemas that engines can enforce, and schemas that they cannot."""

from __future__ import annotations

from typing import Any

import pytest

from marl_ray.core.errors import UserError
from marl_ray.models.json_schemas import ANY_OBJECT, check_json_schema, schema_text

DEEP: dict[str, Any] = {"type": "array"}
for _ in range(40):
    DEEP = {"type": "array", "items": DEEP}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        ANY_OBJECT,
        {"type": "object", "properties": {"format": {"type": "string", "maxLength": 3}}},  # a name, not a keyword
        {"enum": [{"contains": 1}]},
        {"allOf": [{"type": "string"}]},
    ],
)
def test_schemas_that_engines_enforce(schema: dict[str, Any]) -> None:
    check_json_schema(schema)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "nonsense"}, "no JSON schema that engines can enforce: "),
        ({"properties": {"a": {"type": "integer", "multipleOf": 2}}}, "multipleOf cannot be enforced"),
        ({"anyOf": [{"type": "string", "pattern": "a+", "maxLength": 3}]}, "pattern and a length cannot be enforced"),
        ({"allOf": [{"type": "string"}, {"enum": ["a"]}]}, "allOf with several schemas"),
        (DEEP, "more than 30 levels"),
    ],
)
def test_other_schemas_are_refused(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_json_schema(schema)


def test_an_empty_schema_constrains_nothing() -> None:
    assert schema_text({}) == ""
    assert schema_text(ANY_OBJECT) == '{"type": "object"}'
