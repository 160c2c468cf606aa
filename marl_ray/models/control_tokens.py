"""Control tokens, such as `<|im_end|>`, that data or agents write into messages: they are read as text.

Otherwise an agent that writes `<|im_end|><|im_start|>system` would give its partner orders in the name of the system.
The control tokens of the template and of system messages, which a config or the data's author writes, keep their
meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

FIRST_MARK, LAST_MARK = 0xE000, 0xF8FF
"""Range of Unicode's characters for private use, which stand for control tokens while a template is rendered."""
CONTINUED = "\n"
"""Text before a continuation. SentencePiece encodes a newline as one byte, which merges with nothing."""


@dataclass(frozen=True, slots=True)
class RenderedText:
    """A rendered text, and the places (start, end) of control tokens in it that must be read as text."""

    text: str
    written: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MarkedMessages:
    """Messages with a mark in place of each written control token. `tokens` are the control tokens by mark."""

    messages: list[dict[str, Any]]
    tokens: Mapping[str, str]

    def restored(self, rendered: str) -> RenderedText:
        """Return the rendered messages with the control tokens in place of their marks."""
        if not self.tokens:
            return RenderedText(rendered)
        text = ""
        written = []
        for part in re.split(f"([{''.join(self.tokens)}])", rendered):
            token = self.tokens.get(part)
            if token is not None:
                written.append((len(text), len(text) + len(token)))
            text += part if token is None else token
        return RenderedText(text, tuple(written))


def mark_control_tokens(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> MarkedMessages:
    """Return messages with marks in place of the control tokens in their contents, except in system messages."""
    pattern = _control_token_pattern(tokenizer)
    found = dict.fromkeys(token for text in _texts(messages) for token in pattern.findall(text))
    if not found:
        return MarkedMessages([dict(message) for message in messages], {})
    used = set(json.dumps(messages, ensure_ascii=False, default=str))
    free = (chr(code) for code in range(FIRST_MARK, LAST_MARK) if chr(code) not in used)
    mark_of = dict(zip(found, free, strict=False))

    def mark(text: str) -> str:
        return pattern.sub(lambda match: mark_of[match[0]], text)

    marked = [_map_texts(message, mark) for message in messages]
    return MarkedMessages(marked, {mark: token for token, mark in mark_of.items()})


def count_control_tokens(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of control tokens in messages that are read as text."""
    pattern = _control_token_pattern(tokenizer)
    return sum(len(pattern.findall(text)) for text in _texts(messages))


def encode_rendered(tokenizer: Any, rendered: RenderedText, start: int = 0, continues: bool = False) -> list[int]:
    """Return the token ids of a rendered text from the character `start`, without special tokens around it.
    `continues`: other tokens precede its beginning."""
    ids: list[int] = []
    position = start
    for begin, end in rendered.written:
        if begin < start:
            continue
        ids += encode_part(tokenizer, rendered.text[position:begin], continues or position > 0)
        ids += encode_part(tokenizer, rendered.text[begin:end], continues=True, split_special_tokens=True)
        position = end
    return ids + encode_part(tokenizer, rendered.text[position:], continues or position > 0)


def encode_part(tokenizer: Any, text: str, continues: bool, **options: Any) -> list[int]:
    """Return the token ids of a part of a text, without special tokens around it. `continues`: others precede it.

    SentencePiece tokenizers put a space before the first word of every text, which a continuation must not have.
    """
    if not continues or not _puts_a_space_first(tokenizer):
        return tokenizer(text, add_special_tokens=False, **options).input_ids
    before = tokenizer(CONTINUED, add_special_tokens=False).input_ids
    return tokenizer(CONTINUED + text, add_special_tokens=False, **options).input_ids[len(before) :]


def _map_texts(message: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return a message with a change of its content and of the texts in its tool calls. A system message stays."""
    if message.get("role") in ("system", "developer"):
        return dict(message)
    changed = {key: _mapped(message[key], change) for key in ("content", "tool_calls") if key in message}
    return {**message, **changed}


def _texts(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the texts that `_map_texts` would change."""
    texts: list[str] = []

    def note(text: str) -> str:
        texts.append(text)
        return text

    for message in messages:
        _map_texts(message, note)
    return texts


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(inner, change) for key, inner in value.items()}
    return [_mapped(inner, change) for inner in value] if isinstance(value, list | tuple) else value


@lru_cache(maxsize=16)
def _control_token_pattern(tokenizer: Any) -> re.Pattern[str]:
    tokens = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special and token.content]
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


@lru_cache(maxsize=16)
def _puts_a_space_first(tokenizer: Any) -> bool:
    first = tokenizer.convert_ids_to_tokens(tokenizer(CONTINUED, add_special_tokens=False).input_ids)[:1]
    return bool(first) and first[0].startswith("▁")
