"""Tool calls in the text of an answer, in the formats of the models' own templates."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.core.text import json_or

MARK = "<tool_call>"
"""Beginning of a call in an answer."""
MARKED = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
"""A call in the format of Hermes and Qwen models."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: the name of the tool, and its arguments as JSON."""

    id: str
    name: str
    arguments: str


def parse_tool_calls(text: str, raw: str, tools: Sequence[Any]) -> tuple[str, tuple[ToolCall, ...]]:
    """Return an answer's text before its tool calls, and the calls.

    `raw` is the text with special tokens. Calls are objects between `<tool_call>` tags, or an answer that is one object
    with the name of a tool (Llama 3). Anything else is text.

    Example:
        >>> tools = [{"type": "function", "function": {"name": "add"}}]
        >>> parse_tool_calls("", '{"name": "add", "parameters": {"a": 1}}', tools)[1][0].arguments
        '{"a": 1}'
    """
    names = {tool["function"]["name"] for tool in tools}
    marked = list(MARKED.finditer(raw))
    if marked:
        calls = tuple(call for match in marked if (call := _call(match[1], None)) is not None)
        return text.partition(MARK)[0].strip(), calls
    call = _call(text.strip(), names)
    return (text, ()) if call is None else ("", (call,))


def _call(text: str, names: set[str] | None) -> ToolCall | None:
    """Return the call in an object, with any name if `names` is None."""
    data = json_or(text, None)
    if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
        return None
    arguments = data.get("arguments", data.get("parameters", {}))
    if names is not None and (data["name"] not in names or not isinstance(arguments, Mapping)):
        return None
    given = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(f"call_{secrets.token_hex(8)}", data["name"], given)
