"""Conversations as token ids: earlier turns stay as sampled, and the template provides only the ids in between."""

from __future__ import annotations

from typing import Any

import pytest

from marl_ray.config import ModelConfig
from marl_ray.models.conversations import describe_rewriting, extend_conversation
from marl_ray.models.tokenization import encode_prompt, load_tokenizer
from marl_ray.toy import BASE_PATH

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPLIT = "{% set content = m.content.split('</think>')[-1] if m.role == 'assistant' else m.content %}"
DROPS_REASONING = CHATML.replace("<|im_start|>{{ m.role }}", SPLIT + "<|im_start|>{{ m.role }}").replace(
    "{{ m.content }}", "{{ content }}"
)
EMPTY_REASONING = CHATML.replace("assistant\n{% endif %}", "assistant\n<think></think>{% endif %}")
NO_ANSWERS = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    loaded: Any = load_tokenizer(str(BASE_PATH), ModelConfig(max_length=1024))
    loaded.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return loaded


@pytest.fixture
def chat(tokenizer: Any) -> Any:
    tokenizer.chat_template = CHATML
    return tokenizer


def test_a_turn_adds_the_end_of_the_answer_only_if_it_was_not_sampled(chat: Any) -> None:
    first = encode_prompt(chat, "def f(x):", through_template=True)
    end = chat.convert_tokens_to_ids("<|im_end|>")
    answer = chat("return x").input_ids
    for sampled in ([*answer, end], answer):
        history = [*first, *sampled]
        extended = extend_conversation(chat, history, "Again.", through_template=True)
        assert extended[: len(history)] == history
        assert chat.decode(extended) == (
            "<|im_start|>user\ndef f(x):<|im_end|>\n<|im_start|>assistant\nreturn x<|im_end|>\n"
            "<|im_start|>user\nAgain.<|im_end|>\n<|im_start|>assistant\n"
        )


def test_a_newline_of_the_answer_is_not_the_newline_of_the_template(chat: Any) -> None:
    history = [*encode_prompt(chat, "def f(x):", through_template=True), *chat("return x\n").input_ids]
    assert history[-1] in chat("<|im_end|>\n").input_ids
    extended = extend_conversation(chat, history, "Again.", through_template=True)
    assert "return x\n<|im_end|>\n<|im_start|>user" in chat.decode(extended)


def test_ids_that_the_tokenizer_would_not_produce_are_kept(chat: Any) -> None:
    letters = [chat(letter).input_ids[0] for letter in "return"]
    assert chat.decode(letters) == "return"
    assert letters != chat("return").input_ids
    history = [*encode_prompt(chat, "def f(x):", through_template=True), *letters]
    assert extend_conversation(chat, history, "Again.", through_template=True)[: len(history)] == history


def test_without_a_template_the_prompt_follows_after_an_empty_line(tokenizer: Any) -> None:
    history = tokenizer("def f(x):").input_ids
    extended = extend_conversation(tokenizer, history, "Again.\n", through_template=False)
    assert extended == history + tokenizer("\n\nAgain.\n").input_ids


@pytest.mark.parametrize(
    ("template", "change"),
    [
        (CHATML, ""),
        (DROPS_REASONING, "drops the reasoning of earlier answers"),
        (EMPTY_REASONING, "renders earlier prompts in another way"),
    ],
)
def test_templates_that_change_earlier_turns_are_recognised(tokenizer: Any, template: str, change: str) -> None:
    tokenizer.chat_template = template
    assert describe_rewriting(tokenizer, "def f(x):") == change
    history = encode_prompt(tokenizer, "def f(x):", through_template=True)
    assert extend_conversation(tokenizer, history, "Again.", through_template=True)[: len(history)] == history


def test_a_template_without_answers_cannot_continue_a_conversation(tokenizer: Any) -> None:
    tokenizer.chat_template = NO_ANSWERS
    with pytest.raises(ValueError, match="does not render the content of an assistant message"):
        extend_conversation(tokenizer, [1], "Again.", through_template=True)
