"""Conversations of several turns as token ids: earlier turns are kept exactly as they were sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marl_ray.core.chat import Prompt, as_messages, as_text
from marl_ray.models.tokenization import NO_VARIABLES

QUESTION, ANSWER, REASON = "QUESTION", "SAMPLED-ANSWER", "PRIVATE-REASON"
"""Contents of messages that stand for a conversation; the rest of a rendered text is the template's."""


def extend_conversation(
    tokenizer: Any,
    history: Sequence[int],
    prompt: Prompt,
    through_template: bool,
    template_kwargs: Mapping[str, Any] = NO_VARIABLES,
) -> list[int]:
    """Return the token ids `history`, which end with a sampled answer, followed by the ids of the next prompt.

    The added ids are the template's end of the answer, unless it was sampled, then the prompt and the beginning of the
    next answer. Without a template an empty line and the prompt are added. Raises ValueError if the template does not
    render an answer, and the errors of the template.
    """
    if not through_template:
        return [*history, *tokenizer("\n\n" + as_text(prompt), add_special_tokens=False).input_ids]
    ids = _encode(tokenizer, _after_answer_text(tokenizer, as_messages(prompt), template_kwargs))
    between = _after_answer_text(tokenizer, as_messages(QUESTION), template_kwargs).partition(QUESTION)[0]
    ending, last, sampled = _encode(tokenizer, between), history[-1], 0
    # Plain text at the end of the answer, such as a newline, is not the template's end of the answer.
    if last in ending and (last == tokenizer.eos_token_id or last in tokenizer.added_tokens_decoder):
        sampled = ending.index(last) + 1
    return [*history, *ids[sampled:]]


def describe_rewriting(tokenizer: Any, prompt: Prompt, template_kwargs: Mapping[str, Any] = NO_VARIABLES) -> str:
    """Return how the template changes earlier turns when it renders a whole conversation; "" if it keeps them.

    Raises the errors of the template.
    """
    messages = as_messages(prompt)
    answer = {"role": "assistant", "content": f"<think>\n{REASON}\n</think>\n\n{ANSWER}"}
    conversation = [*messages, answer, {"role": "user", "content": QUESTION}]
    first = _render(tokenizer, messages, template_kwargs)
    later = _render(tokenizer, conversation, template_kwargs)
    if REASON not in later:
        return "drops the reasoning of earlier answers"
    return "" if later.startswith(first) else "renders earlier prompts in another way"


def _after_answer_text(tokenizer: Any, messages: Sequence[Any], template_kwargs: Mapping[str, Any]) -> str:
    """Return the text that the template puts after an answer, with the messages that follow it. Raises ValueError."""
    begin = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    text = _render(tokenizer, [*begin, *messages], template_kwargs)
    _, found, after = text.partition(ANSWER)
    if not found:
        raise ValueError("it does not render the content of an assistant message")
    return after


def _render(tokenizer: Any, messages: Sequence[Any], template_kwargs: Mapping[str, Any]) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **template_kwargs)


def _encode(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids
