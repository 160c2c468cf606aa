"""Bodies of replies in OpenAI's format."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.core.episode import Generation


@dataclass(slots=True)
class Usage:
    """Numbers of tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, generation: Generation) -> None:
        """Count the tokens of a generation."""
        self.prompt_tokens += len(generation.prompt_ids)
        self.completion_tokens += sum(len(completion.token_ids) for completion in generation.completions)

    def to_dict(self) -> dict[str, int]:
        """Return the usage in the API's format."""
        total = self.prompt_tokens + self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": total,
        }


def model_entry(name: str, created: int = 0) -> dict[str, Any]:
    """Return the description of a model."""
    return {"id": name, "object": "model", "created": created, "owned_by": "marl_ray"}


class ReplyFormat:
    """The form of a reply of /v1/chat/completions, or of /v1/completions (`is_chat` False).

    A message is the object of the chat endpoint, for example `{"content": text}`. The other endpoint sends its content
    only.
    """

    def __init__(self, model: str, is_chat: bool) -> None:
        self._is_chat = is_chat
        if is_chat:
            prefix = "chatcmpl"
            self._kind = "chat.completion"
            self._chunk_kind = "chat.completion.chunk"
        else:
            prefix = "cmpl"
            self._kind = "text_completion"
            self._chunk_kind = self._kind
        id = f"{prefix}-{secrets.token_hex(12)}"
        self._common = {"id": id, "created": int(time.time()), "model": model}

    def reply(self, choices: Sequence[tuple[Mapping[str, Any], str]], usage: Usage) -> dict[str, Any]:
        """Return a complete reply, with a message and a finish reason per choice."""
        listed = []
        for number, (message, reason) in enumerate(choices):
            said = {"role": "assistant", **message}
            listed.append(self._choice(number, "message", said, reason))
        return self._common | {"object": self._kind, "choices": listed, "usage": usage.to_dict()}

    def chunk(self, delta: Mapping[str, Any], reason: str | None = None, index: int = 0) -> dict[str, Any]:
        """Return a part of a streamed reply."""
        choice = self._choice(index, "delta", delta, reason)
        return self._common | {"object": self._chunk_kind, "choices": [choice]}

    def without_choice(self, **fields: Any) -> dict[str, Any]:
        """Return a part of a streamed reply that belongs to no choice, for example its usage."""
        return self._common | {"object": self._chunk_kind, "choices": [], **fields}

    def _choice(self, index: int, name: str, message: Mapping[str, Any], reason: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index}
        if self._is_chat:
            choice[name] = message
        else:
            choice["text"] = message.get("content", "")
        # Clients of OpenAI expect the key, also without log-probabilities.
        return {**choice, "logprobs": None, "finish_reason": reason}
