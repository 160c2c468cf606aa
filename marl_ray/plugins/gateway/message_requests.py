"""Requests of programs in the format of Anthropic's API, and answers in this format."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from marl_ray.core.text import json_or
from marl_ray.http.request_formats import MAX_STOPS, ApiError
from marl_ray.plugins.gateway.program_episode import CallAnswer, CallOptions
from marl_ray.plugins.gateway.prompt_renderer import TemplateMessage

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class TextBlock(BaseModel):
    """A block of text."""

    type: Literal["text"]
    text: str


class ToolUseBlock(BaseModel):
    """A tool call in an assistant message."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any] = {}


class ToolResultBlock(BaseModel):
    """The result of a tool call in a user message."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] = ""


class BlockMessage(BaseModel):
    """A message of blocks."""

    role: Literal["user", "assistant"]
    content: str | list[Annotated[TextBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]]

    def messages(self) -> list[TemplateMessage]:
        """Return the messages for the chat template: results of tools are messages of their own, before the text."""
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        text = "".join(block.text for block in self.content if isinstance(block, TextBlock))
        results: list[TemplateMessage] = [
            {"role": "tool", "tool_call_id": block.tool_use_id, "content": _text(block.content)}
            for block in self.content
            if isinstance(block, ToolResultBlock)
        ]
        calls = [
            {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
            for block in self.content
            if isinstance(block, ToolUseBlock)
        ]
        own: dict[str, Any] = {"role": self.role, "content": text} | ({"tool_calls": calls} if calls else {})
        return [*results, own] if text or calls or not results else results


class BlockTool(BaseModel):
    """A tool that an agent may call."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    description: str = ""
    input_schema: dict[str, Any] = {}


class MessagesRequest(BaseModel):
    """Body of /v1/messages."""

    model_config = ConfigDict(strict=True)
    model: Annotated[str, Field(max_length=200)]
    messages: Annotated[list[BlockMessage], Field(min_length=1, max_length=4096)]
    max_tokens: Annotated[int, Field(ge=1)]
    system: str | list[TextBlock] | None = None
    stop_sequences: Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    tools: Annotated[list[BlockTool], Field(max_length=128)] | None = None
    stream: bool | None = None

    def conversation(self) -> list[TemplateMessage]:
        """Return the messages for the chat template."""
        first: list[TemplateMessage] = [{"role": "system", "content": _text(self.system)}] if self.system else []
        return first + [message for one in self.messages for message in one.messages()]

    def offered(self) -> list[dict[str, Any]]:
        """Return the tools for the chat template."""
        return [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
            }
            for tool in self.tools or ()
        ]

    def options(self) -> CallOptions:
        """Return the options of the call."""
        return CallOptions(1, tuple(stop for stop in self.stop_sequences or () if stop), self.max_tokens)


def message_reply(model: str, answer: CallAnswer) -> dict[str, Any]:
    """Return the body of a reply."""
    content: list[dict[str, Any]] = [{"type": "text", "text": answer.text}] if answer.text else []
    for call in answer.tool_calls:
        content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _object(call.arguments)})
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": STOP_REASONS[answer.finish_reason],
        "stop_sequence": None,
        "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": answer.tokens},
    }


class MessageEvents:
    """A streamed reply: a block of text, which begins with the first text, and a block per tool call."""

    def __init__(self, model: str) -> None:
        self._model, self._blocks = model, 0

    def start(self, choices: int, prompt_tokens: int) -> Iterator[bytes]:
        empty = message_reply(self._model, CallAnswer("", (), "stop", 0, prompt_tokens))
        yield _event("message_start", {"message": empty | {"stop_reason": None}})

    def text(self, choice: int, text: str) -> Iterator[bytes]:
        if not self._blocks:
            yield _event("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}})
            self._blocks = 1
        yield _event("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}})

    def end(self, answers: Sequence[CallAnswer]) -> Iterator[bytes]:
        reply = message_reply(self._model, answers[0])
        if self._blocks:
            yield _event("content_block_stop", {"index": 0})
        for index, block in enumerate((one for one in reply["content"] if one["type"] == "tool_use"), self._blocks):
            text = json.dumps(block["input"], ensure_ascii=False)
            yield _event("content_block_start", {"index": index, "content_block": block | {"input": {}}})
            delta: dict[str, Any] = {"type": "input_json_delta", "partial_json": text}
            yield _event("content_block_delta", {"index": index, "delta": delta})
            yield _event("content_block_stop", {"index": index})
        delta = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
        yield _event("message_delta", {"delta": delta, "usage": reply["usage"]})
        yield _event("message_stop", {})

    def error(self, error: ApiError) -> bytes:
        return _event("error", {"error": error.body()["error"]})


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data}, ensure_ascii=False)}\n\n".encode()


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


def _object(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call as an object, empty if a model has written something else."""
    value = json_or(arguments, {})
    return value if isinstance(value, dict) else {}
