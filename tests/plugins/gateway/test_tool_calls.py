"""Tool calls in the formats of the models' own templates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from marl_ray.plugins.gateway.tool_calls import CallFormat, format_of_template, parse_tool_calls, text_before_calls

PROPERTIES = {"a": {"type": "integer"}, "code": {"type": "string"}}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"properties": PROPERTIES}}}


def parsed(text: str, form: CallFormat = "tagged", *, opened: bool = False, raw: str = "") -> tuple[str, list[Any]]:
    before, calls = parse_tool_calls(text, raw or text, [ADD], form, opened)
    return before, [(call.name, json.loads(call.arguments)) for call in calls]


TAGGED = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
XML = """<tool_call>
<function=add>
<parameter=a>
1
</parameter>
<parameter=code>
if a:
    print("<1>")
</parameter>
</function>
</tool_call>"""
OBJECT = '{"name": "add", "parameters": {"a": 1}}'
LIST = '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}, {"name": "add", "arguments": {"a": 2}}]'
ONE, TWO = ("add", {"a": 1}), ("add", {"a": 2})


@pytest.mark.parametrize(
    ("form", "text", "calls"),
    [
        ("tagged", TAGGED, [ONE]),
        ("tagged", TAGGED + "\n" + TAGGED, [ONE, ONE]),
        ("tagged", OBJECT, [ONE]),
        ("xml", XML, [("add", {"a": 1, "code": 'if a:\n    print("<1>")'})]),
        ("xml", XML.removeprefix("<tool_call>\n"), [("add", {"a": 1, "code": 'if a:\n    print("<1>")'})]),
        ("object", OBJECT, [ONE]),
        ("object", f"{OBJECT}; {OBJECT}", [ONE, ONE]),
        ("listed", LIST + "</s>", [ONE, TWO]),
        ("listed", '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 2}</s>', [ONE, TWO]),
        ("listed", '[TOOL_CALLS]add{"a": 1}', [ONE]),
        ("tagged", "No call: <tool_call>", []),
        ("xml", TAGGED, []),
        ("listed", "[TOOL_CALLS]nothing", []),
    ],
)
def test_calls_are_read_in_the_format_of_the_template(form: CallFormat, text: str, calls: list[Any]) -> None:
    assert parsed(text, form)[1] == calls
    if calls and not text.startswith("{"):
        assert parsed(f"I add. {text}", form) == ("I add.", calls)


def test_special_tokens_before_a_call_are_no_text() -> None:
    raw = f"<|start|>I add.{TAGGED}<|im_end|>"
    assert parsed("I add." + TAGGED, raw=raw) == ("I add.", [ONE])
    assert parsed(OBJECT, "object", raw=f"<|python_tag|>{OBJECT}<|eom_id|>") == ("", [ONE])


@pytest.mark.parametrize("form", ["tagged", "xml", "object", "listed"])
def test_a_call_drafted_in_reasoning_is_no_call(form: CallFormat) -> None:
    call = {"tagged": TAGGED, "xml": XML, "object": OBJECT, "listed": LIST}[form]
    for text, opened in (
        (f"<think>{call}", False),
        (f"<think>Maybe {call}</think>Three.", False),
        (f"Maybe {call}</think>Three.", True),  # the prompt has opened the reasoning
        (f"Maybe {call}", True),
        (f"<think>a</think>b<think>{call}", False),
        (f"[THINK]{call}[/THINK]Three.", False),
    ):
        assert parsed(text, form, opened=opened) == (text, []), text
    text = f"<think>Maybe {call}</think>{call}"
    before, calls = parsed(text, form)
    assert (before, calls) == (f"<think>Maybe {call}</think>", parsed(call, form)[1])
    assert parsed(f"Maybe {call}</think>{call}", form, opened=True)[1] == parsed(call, form)[1]


def test_ids_of_mistral_are_nine_letters_and_depend_on_the_answer_alone() -> None:
    first, second = parse_tool_calls("", LIST, [ADD], "listed")[1]
    assert first.id == "abcdefghi"
    assert len(second.id) == 9
    assert parse_tool_calls("", LIST, [ADD], "listed")[1] == (first, second)


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("return a json object within <tool_call></tool_call> tags", "tagged"),
        ("<tool_call>\n<function=example_function_name>", "xml"),
        ("<|python_tag|> {{ message }}", "object"),
        ("{{ '[TOOL_CALLS]' }}", "listed"),
    ],
)
def test_the_template_decides_the_format(template: str, form: str) -> None:
    assert format_of_template(template) == form


@pytest.mark.parametrize(
    ("text", "form", "shown"),
    [
        ("I add. <tool_call>{", "tagged", "I add."),
        ("I add. <funct", "xml", "I add."),
        ("I add. <function=add>", "xml", "I add."),
        ("I add. <", "object", "I add."),
        ('add{"a', "listed", ""),
    ],
)
def test_a_stream_shows_no_part_of_a_call(text: str, form: CallFormat, shown: str) -> None:
    assert text_before_calls(text, form) == shown


@pytest.mark.parametrize(
    ("described", "expected"),
    [({"type": "string"}, "1"), ({"type": "integer"}, 1), ({}, 1), (True, 1), ({"anyOf": [{"type": "integer"}]}, 1)],
)
def test_a_value_in_xml_is_json_unless_the_schema_says_text(described: Any, expected: Any) -> None:
    schema = {"type": "object", "properties": {"a": described}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": schema}}]
    text = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    _, calls = parse_tool_calls(text, text, tools, "xml", False)
    assert [json.loads(call.arguments) for call in calls] == [{"a": expected}]
