"""Requests of programs in the format of Anthropic's API, and answers in this format."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from marl_ray.core.text import json_or
from marl_ray.http.request_formats import MAX_STOPS, ApiError, text_of
from marl_ray.plugins.gateway.program_episode import CallAnswer, CallOptions
from marl_ray.plugins.gateway.prompt_renderer import TemplateMessage
from marl_ray.plugins.gateway.tool_calls import call_data, tool_schema

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
        # Templates expect a result directly behind its call, so that results come before the text.
        messages: list[TemplateMessage] = []
        text = ""
        calls = []
        for block in self.content:
            if isinstance(block, TextBlock):
                text += block.text
            elif isinstance(block, ToolUseBlock):
                calls.append(call_data(block.id, block.name, block.input))
            else:
                result = {"role": "tool", "tool_call_id": block.tool_use_id, "content": text_of(block.content)}
                messages.append(result)
        if text or calls or not messages:
            said: dict[str, Any] = {"role": self.role, "content": text}
            if calls:
                said["tool_calls"] = calls
            messages.append(said)
        return messages


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
        messages: list[TemplateMessage] = []
        if self.system:
            messages.append({"role": "system", "content": text_of(self.system)})
        for message in self.messages:
            messages += message.messages()
        return messages

    def offered(self) -> list[dict[str, Any]]:
        """Return the tools for the chat template."""
        return [tool_schema(tool.name, tool.description, tool.input_schema) for tool in self.tools or ()]

    def options(self) -> CallOptions:
        """Return the options of the call."""
        stops = tuple(filter(None, self.stop_sequences or ()))
        return CallOptions(1, stops, self.max_tokens)


def message_reply(model: str, answer: CallAnswer) -> dict[str, Any]:
    """Return the body of a reply."""
    content: list[dict[str, Any]] = []
    if answer.text:
        content.append({"type": "text", "text": answer.text})
    for call in answer.tool_calls:
        arguments = json_or(call.arguments, {})
        if not isinstance(arguments, dict):
            arguments = {}  # the model has written something else than an object
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}
        content.append(block)
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
        self._model = model
        self._blocks = 0
        """Number of blocks that have begun."""

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
        for block in reply["content"]:
            if block["type"] != "tool_use":
                continue
            index = self._blocks
            self._blocks += 1
            text = json.dumps(block["input"], ensure_ascii=False)
            # Anthropic's client joins the parts of the input, which begins empty.
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
    text = json.dumps({"type": name, **data}, ensure_ascii=False)
    return f"event: {name}\ndata: {text}\n\n".encode()
