"""Tool calls in the text of an answer, in the format that the model's chat template teaches.

| format | a call | models |
|---|---|---|
| `tagged` | `<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>`, or one object | Hermes, Qwen 2.5 and 3 |
| `xml` | `<tool_call><function=add><parameter=a>1</parameter></function></tool_call>` | Qwen 3 Coder |
| `object` | `{"name": "add", "parameters": {"a": 1}}`, several with `;` between them | Llama 3 |
| `listed` | `[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]` or `[TOOL_CALLS]add[ARGS]{"a": 1}` | Mistral |
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from marl_ray.core.text import json_or

CallFormat = Literal["tagged", "xml", "object", "listed"]

MARKS: Mapping[CallFormat, tuple[str, ...]] = {
    "tagged": ("<tool_call>",),
    "xml": ("<tool_call>", "<function="),
    "object": ("<|python_tag|>",),
    "listed": ("[TOOL_CALLS]",),
}
"""Texts with which a call may begin."""
TAGGED = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
XML = re.compile(r"(?:<tool_call>\s*)?<function=([^>\n]+)>(.*?)</function>", re.DOTALL)
XML_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
LISTED_NAME = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)")
SPECIAL_TOKEN = re.compile(r"<\|[^|>]*\|>|</s>")
"""A special token, such as the end of an answer."""
REASONING_BEGINS = ("<think>", "[THINK]")
"""Beginnings of reasoning, which contains no calls."""
REASONING_MARK = re.compile(r"</?think>|\[/?THINK\]")
LISTED_ID = re.compile(r"[a-zA-Z0-9]{9}")
"""The ids that Mistral's templates accept."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: the name of the tool, and its arguments as JSON."""

    id: str
    name: str
    arguments: str

    def data(self) -> dict[str, Any]:
        """Return the call in OpenAI's format."""
        return call_data(self.id, self.name, self.arguments)


def call_data(id: str, name: str, arguments: Any) -> dict[str, Any]:
    """Return a call in OpenAI's format. Chat templates take the arguments as an object, the API as text."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_schema(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a tool in OpenAI's format."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def format_of_template(template: str) -> CallFormat:
    """Return the format of the calls that a chat template teaches.

    Example:
        >>> format_of_template("... <function=example_function_name> ..."), format_of_template("")
        ('xml', 'tagged')
    """
    if "[TOOL_CALLS]" in template:
        return "listed"
    if "<function=" in template and "<|python_tag|>" not in template:
        return "xml"
    if "<|python_tag|>" in template:
        return "object"
    return "tagged"


def parse_tool_calls(
    text: str, raw: str, tools: Sequence[Any], form: CallFormat = "tagged", begins_with_reasoning: bool = False
) -> tuple[str, tuple[ToolCall, ...]]:
    """Return an answer's text before its tool calls, and the calls. Anything that is no call is text.

    `raw` is the text with special tokens. With `begins_with_reasoning`, the prompt has opened the reasoning.

    Example:
        >>> tools = [{"type": "function", "function": {"name": "add"}}]
        >>> parse_tool_calls("", '{"name": "add", "parameters": {"a": 1}}', tools)[1][0].arguments
        '{"a": 1}'
    """
    begin = _end_of_reasoning(raw, begins_with_reasoning)
    spoken = raw[begin:]
    if form == "xml":
        found = _xml_calls(spoken, tools)
    elif form == "listed":
        found = _listed_calls(spoken)
    else:
        found = _tagged_calls(spoken)
        if found is None:
            # Models also write the object of a call without its tags, as the whole answer.
            names = {tool["function"]["name"] for tool in tools}
            alone = SPECIAL_TOKEN.sub("", spoken) if begin else text
            bare = _bare_calls(alone, names, several=form == "object")
            found = (0, bare) if bare else None
    if found is None:
        return text, ()
    position, calls = found
    before = raw[: begin + position].strip()
    if not text.startswith(before):
        # Special tokens, which `text` lacks, may precede a call.
        before = SPECIAL_TOKEN.sub("", before).strip()
    return before, calls


def _end_of_reasoning(raw: str, begins_with_reasoning: bool) -> int:
    """Return the position behind the last reasoning, which is the end of the text if the reasoning is not closed."""
    position = 0
    is_reasoning = begins_with_reasoning
    for mark in REASONING_MARK.finditer(raw):
        if mark[0] in REASONING_BEGINS:
            is_reasoning = True
        elif is_reasoning:
            is_reasoning = False
            position = mark.end()
    return len(raw) if is_reasoning else position


Found = tuple[int, tuple[ToolCall, ...]]
"""The position of the first call, and the calls."""


def _tagged_calls(text: str) -> Found | None:
    """Return the calls between tags, None without tags."""
    marked = list(TAGGED.finditer(text))
    if not marked:
        return None
    calls = []
    for match in marked:
        call = _call(json_or(match[1], None), None)
        if call is not None:
            calls.append(call)
    return text.index(MARKS["tagged"][0]), tuple(calls)


def _xml_calls(text: str, tools: Sequence[Any]) -> Found | None:
    """Return the calls in XML. Values are JSON, or else texts; texts if the tool's schema says so."""
    marked = list(XML.finditer(text))
    if not marked:
        return None
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    calls = []
    for match in marked:
        name = match[1].strip()
        properties = schemas.get(name, {}).get("properties") or {}
        arguments: dict[str, Any] = {}
        for parameter in XML_PARAMETER.finditer(match[2]):
            key = parameter[1].strip()
            value: Any = parameter[2]
            described = properties.get(key)
            is_text = isinstance(described, Mapping) and described.get("type") == "string"
            if not is_text:
                # A property without a type, such as of `int | None`, may have any JSON.
                value = json_or(value, value)
            arguments[key] = value
        calls.append(ToolCall(_random_id(), name, json.dumps(arguments, ensure_ascii=False)))
    return marked[0].start(), tuple(calls)


def _listed_calls(text: str) -> Found | None:
    """Return the calls behind `[TOOL_CALLS]`: a list of objects, or a name and an object after each mark."""
    (mark,) = MARKS["listed"]
    before, found, _ = text.partition(mark)
    if not found:
        return None
    objects: list[Any] = []
    for part in text[len(before) + len(mark) :].split(mark):
        name = LISTED_NAME.match(part)
        if name:
            arguments = _first_value(part[name.end() :])
            objects.append({"name": name[1], "arguments": arguments})
            continue
        value = _first_value(part)
        if isinstance(value, list):
            objects += value
        else:
            objects.append(value)
    calls = []
    for number, value in enumerate(objects):
        call = _call(value, None)
        if call is None:
            continue
        id = str(value.get("id", ""))
        if not LISTED_ID.fullmatch(id):
            # Mistral's templates render ids, so that an id has to be a function of the answer.
            id = hashlib.sha256(f"{number} {text}".encode()).hexdigest()[:9]
        calls.append(ToolCall(id, call.name, call.arguments))
    return len(before), tuple(calls)


def _bare_calls(text: str, names: set[str], several: bool) -> tuple[ToolCall, ...]:
    """Return the call of an answer that is one object with the name of a tool; with `several`, of several objects."""
    rest = text.strip()
    calls: list[ToolCall] = []
    while rest:
        try:
            value, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            return ()
        call = _call(value, names)
        rest = rest[end:].lstrip("; \n")
        if call is None or (rest and not several):
            return ()
        calls.append(call)
    return tuple(calls)


def _first_value(text: str) -> Any:
    """Return the JSON value at the beginning of a text, None without one."""
    try:
        return json.JSONDecoder().raw_decode(text.lstrip())[0]
    except (ValueError, RecursionError):
        return None


def _call(data: Any, names: set[str] | None) -> ToolCall | None:
    """Return the call in an object, with any name if `names` is None."""
    if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
        return None
    arguments = data.get("arguments", data.get("parameters", {}))
    if names is not None and (data["name"] not in names or not isinstance(arguments, Mapping)):
        return None
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(_random_id(), data["name"], arguments)


def _random_id() -> str:
    return f"call_{secrets.token_hex(8)}"


def text_before_calls(text: str, form: CallFormat = "tagged") -> str:
    """Return the beginning of an answer so far that belongs to no tool call, however the answer continues.

    Example:
        >>> text_before_calls("I add. <tool"), text_before_calls('{"name"')
        ('I add.', '')
    """
    if form == "listed" or text.lstrip()[:1] in ("", "{"):
        return ""  # the mark of listed calls is a special token, which the text lacks
    before = text
    for mark in MARKS[form]:
        before = before.partition(mark)[0]
    # The text so far may end within a mark.
    for mark in MARKS[form]:
        for length in range(len(mark) - 1, 0, -1):
            if before.endswith(mark[:length]):
                before = before[:-length]
                break
    return before.rstrip()
