"""Prompts: one text, or the messages of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ChatMessage = Mapping[str, str]
"""One message with the keys `role` (system, user or assistant) and `content`."""
Prompt = str | Sequence[ChatMessage]
"""A text, which is one user message for a model with a chat template, or messages that end with the agent's input."""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt as token ids, which a generator reads as they are."""

    token_ids: tuple[int, ...]


def as_messages(prompt: Prompt) -> list[ChatMessage]:
    """Return the messages of a prompt."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return list(prompt)


def as_text(prompt: Prompt) -> str:
    """Return a prompt as plain text, for models without a chat template: contents with an empty line between them."""
    if isinstance(prompt, str):
        return prompt
    *earlier, last = [message["content"] for message in prompt]
    # The end of the last message stays: a model continues it.
    paragraphs = [content.rstrip("\n") for content in earlier]
    return "\n\n".join([*paragraphs, last])


def describe_prompt(prompt: Prompt) -> str:
    """Return a prompt as text for people, with the role above each message."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in prompt)


def with_system_prompt(prompt: Prompt, system_prompt: str | None) -> Prompt:
    """Return a prompt whose system message begins with `system_prompt`; unchanged without one."""
    if system_prompt is None:
        return prompt
    messages = as_messages(prompt)
    if messages[0]["role"] == "system":
        system_prompt = f"{system_prompt}\n\n{messages.pop(0)['content']}"
    return [{"role": "system", "content": system_prompt}, *messages]


def prepend(text: str, prompt: Prompt) -> Prompt:
    """Return a prompt with `text` before the agent's input, which is the last message."""
    if isinstance(prompt, str):
        return text + prompt
    return [*prompt[:-1], {**prompt[-1], "content": text + prompt[-1]["content"]}]
