"""Prompts as text and as chat messages."""

from __future__ import annotations

from marl_ray.core.chat import as_messages, as_text, describe_prompt, prepend, with_system_prompt

CHAT = [
    {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "1 + 2?\n"},
]


def test_a_text_is_one_user_message() -> None:
    assert as_messages("1 + 1?") == [{"role": "user", "content": "1 + 1?"}]
    assert as_messages(CHAT) == CHAT


def test_a_system_prompt_comes_before_the_environments_own() -> None:
    assert with_system_prompt("Go.", None) == "Go."
    assert with_system_prompt("Go.", "You write code.") == [
        {"role": "system", "content": "You write code."},
        {"role": "user", "content": "Go."},
    ]
    assert with_system_prompt(CHAT, "You add.") == [
        {"role": "system", "content": "You add.\n\nBe brief.\n"},
        *CHAT[1:],
    ]


def test_messages_as_text() -> None:
    assert as_text("Go.\n") == "Go.\n"
    assert as_text(CHAT) == "Be brief.\n\n1 + 1?\n\n2\n\n1 + 2?\n"
    assert describe_prompt(CHAT[1:3]) == "[user]\n1 + 1?\n\n[assistant]\n2"


def test_text_before_the_input_of_an_agent() -> None:
    assert prepend("A said 3. ", "Go.") == "A said 3. Go."
    assert prepend("A said 3. ", CHAT) == [*CHAT[:-1], {"role": "user", "content": "A said 3. 1 + 2?\n"}]
