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

MARKS = range(0xE000, 0xF8FF)
"""Unicode's characters for private use, which stand for control tokens while a template is rendered."""
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
            if token is None:
                text += part
                continue
            start = len(text)
            text += token
            written.append((start, len(text)))
        return RenderedText(text, tuple(written))


def mark_control_tokens(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> MarkedMessages:
    """Return messages with marks in place of the control tokens in their contents, except in system messages."""
    pattern = _control_token_pattern(tokenizer)
    written: dict[str, None] = {}  # in order, each once
    for text in _texts(messages):
        written.update(dict.fromkeys(pattern.findall(text)))
    if not written:
        return MarkedMessages(list(map(dict, messages)), {})
    # A mark that the messages contain already would become a control token.
    used = set(json.dumps(messages, ensure_ascii=False, default=str))
    free = sorted(set(map(chr, MARKS)) - used)
    mark_of = dict(zip(written, free, strict=False))
    token_of = dict(zip(free, written, strict=False))

    def mark(text: str) -> str:
        return pattern.sub(lambda match: mark_of[match[0]], text)

    marked = [_map_texts(message, mark) for message in messages]
    return MarkedMessages(marked, token_of)


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
    changed = dict(message)
    for key in ("content", "tool_calls"):
        if key in message:
            changed[key] = _mapped(message[key], change)
    return changed


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
    if isinstance(value, list | tuple):
        return [_mapped(inner, change) for inner in value]
    return value


@lru_cache(maxsize=16)
def _control_token_pattern(tokenizer: Any) -> re.Pattern[str]:
    tokens = []
    for token in tokenizer.added_tokens_decoder.values():
        if token.special and token.content:
            tokens.append(token.content)
    # The first alternative that matches wins, also if it is the beginning of another token.
    longest_first = sorted(tokens, key=len, reverse=True)
    matches_nothing = r"(?!)"
    return re.compile("|".join(map(re.escape, longest_first)) or matches_nothing)


@lru_cache(maxsize=16)
def _puts_a_space_first(tokenizer: Any) -> bool:
    ids = tokenizer(CONTINUED, add_special_tokens=False).input_ids
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return bool(tokens) and tokens[0].startswith("▁")  # SentencePiece's space
