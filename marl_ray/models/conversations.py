"""Conversations of several turns as token ids: earlier turns are kept exactly as they were sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marl_ray.core.chat import Prompt, as_messages, as_text
from marl_ray.models.control_tokens import encode_part, encode_rendered, mark_control_tokens
from marl_ray.models.tokenization import NO_VARIABLES

# Contents of messages that stand for a conversation; the rest of a rendered text is the template's.
QUESTION = "QUESTION"
ANSWER = "SAMPLED-ANSWER"
REASON = "PRIVATE-REASON"


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
        return [*history, *encode_part(tokenizer, "\n\n" + as_text(prompt), continues=True)]
    marked = mark_control_tokens(tokenizer, as_messages(prompt))
    following = marked.restored(_after_answer_text(tokenizer, marked.messages, template_kwargs))
    ids = encode_rendered(tokenizer, following, continues=True)
    between = _after_answer_text(tokenizer, as_messages(QUESTION), template_kwargs).partition(QUESTION)[0]
    ending = encode_part(tokenizer, between, continues=True)
    sampled = _length_of_sampled_end(tokenizer, history[-1], ending)
    return [*history, *ids[sampled:]]


def _length_of_sampled_end(tokenizer: Any, last: int, ending: Sequence[int]) -> int:
    """Return how many of the ids that the template puts after an answer the agent has sampled; `last` is the answer's
    last id.

    Plain text at the end of the answer, such as a newline, is not the template's end of the answer. Neither is a
    control token of the next message, at which an answer of maximum length can be cut.
    """
    control_tokens = {tokenizer.eos_token_id, *tokenizer.added_tokens_decoder}
    for place, token in enumerate(ending):
        if token in control_tokens:
            return place + 1 if token == last else 0
    return 0


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
    if not later.startswith(first):
        return "renders earlier prompts in another way"
    return ""


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
