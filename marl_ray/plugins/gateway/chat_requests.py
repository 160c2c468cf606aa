"""Requests of programs in OpenAI's format, checked, and answers in this format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from marl_ray.core.errors import UserError
from marl_ray.core.text import json_or
from marl_ray.http.reply_format import ReplyFormat, Usage
from marl_ray.http.request_formats import ApiError, Part, SamplingRequest, Text, encode_event, text_of
from marl_ray.models.json_schemas import ANY_OBJECT, check_json_schema, schema_text
from marl_ray.plugins.gateway.program_episode import CallAnswer, CallOptions
from marl_ray.plugins.gateway.prompt_renderer import TemplateMessage
from marl_ray.plugins.gateway.tool_calls import call_data

UNSUPPORTED_IN_EPISODES = ("functions", "logit_bias", "logprobs", "top_logprobs", "audio", "suffix", "echo", "best_of")
"""Settings that would change an answer in a way that a run does not have. The temperature, top_p and the seed of a
request are not refused: the run's own settings hold, because the learner trains the policy at them."""
MAX_MESSAGES = 4096


class CalledFunction(BaseModel):
    """Name and arguments of a tool call."""

    name: str
    arguments: str = "{}"


class CalledTool(BaseModel):
    """A tool call in an assistant message."""

    id: Annotated[str, Field(max_length=200)] = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class ProgramMessage(BaseModel):
    """A message of a conversation, with tool calls and their results."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    def message(self) -> TemplateMessage:
        """Return the message for the chat template."""
        # Chat templates do not know OpenAI's newer name of the system.
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": text_of(self.content)}
        if self.tool_calls:
            message["tool_calls"] = []
            for call in self.tool_calls:
                # Templates render arguments as an object.
                arguments = json_or(call.function.arguments, call.function.arguments)
                message["tool_calls"].append(call_data(call.id, call.function.name, arguments))
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            message["name"] = self.name
        return message


class ToolFunction(BaseModel):
    """The description of a function."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    description: str = ""
    parameters: dict[str, Any] = {}


class OfferedTool(BaseModel):
    """A tool that an agent may call."""

    type: Literal["function"]
    function: ToolFunction


class NamedSchema(BaseModel):
    """A JSON schema with its name, in OpenAI's form."""

    name: str = ""
    definition: Annotated[dict[str, Any], Field(alias="schema")] = {}


class ResponseFormat(BaseModel):
    """The form of an answer: free text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class ProgramChatRequest(SamplingRequest):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[ProgramMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[list[OfferedTool], Field(max_length=128)] | None = None
    tool_choice: Any = None
    response_format: ResponseFormat | None = None

    def offered(self) -> list[dict[str, Any]]:
        """Return the tools for the chat template. Raises ApiError for a choice that the sampler cannot enforce."""
        if self.tool_choice not in (None, "auto", "none"):
            raise ApiError(400, "tool_choice should be auto or none", "unsupported_parameter", "tool_choice")
        if self.tool_choice == "none":
            return []
        return [tool.model_dump() for tool in self.tools or ()]

    def json_schema(self) -> str:
        """Return the schema of the answer as text, "" for free text. Raises ApiError for a schema that the engine
        cannot enforce, and beside tools, which the schema would rule out."""
        asked = self.response_format
        if asked is None or asked.type == "text":
            return ""
        if self.tools and self.tool_choice != "none":
            raise ApiError(400, "response_format and tools exclude each other", "unsupported_parameter", "tools")
        schema: Mapping[str, Any] = ANY_OBJECT
        if asked.type == "json_schema":
            if asked.json_schema is None:
                raise ApiError(400, "response_format has no json_schema", "missing_parameter", "response_format")
            schema = asked.json_schema.definition or ANY_OBJECT
        try:
            check_json_schema(schema)
        except UserError as error:
            raise ApiError(400, f"response_format: {error}", "invalid_schema", "response_format") from None
        return schema_text(schema)


class ProgramTextRequest(SamplingRequest):
    """Body of /v1/completions."""

    prompt: Text


def call_options(asked: SamplingRequest) -> CallOptions:
    """Return the options of a request."""
    limit = asked.max_completion_tokens
    if limit is None:
        limit = asked.max_tokens
    schema = ""
    if isinstance(asked, ProgramChatRequest):
        schema = asked.json_schema()
    return CallOptions(asked.n or 1, tuple(asked.stops), limit, schema)


def chat_reply(model: str, answers: Sequence[CallAnswer], is_chat: bool) -> dict[str, Any]:
    """Return the body of a reply of /v1/chat/completions, or of /v1/completions (`is_chat` False)."""
    form = ReplyFormat(model, is_chat)
    choices = []
    for answer in answers:
        message: dict[str, Any] = {"content": answer.text}
        if answer.tool_calls:
            # OpenAI's clients expect null beside calls without a text.
            message = {"content": answer.text or None, "tool_calls": _calls(answer)}
        choices.append((message, answer.finish_reason))
    return form.reply(choices, _usage(answers, answers[0].prompt_tokens))


class ChunkEvents:
    """A streamed reply of /v1/chat/completions, or of /v1/completions (`is_chat` False)."""

    def __init__(self, asked: SamplingRequest, is_chat: bool) -> None:
        self._form = ReplyFormat(asked.model, is_chat)
        self._is_chat = is_chat
        self._with_usage = asked.stream_options is not None and asked.stream_options.include_usage
        self._prompt_tokens = 0

    def start(self, choices: int, prompt_tokens: int) -> Iterator[bytes]:
        self._prompt_tokens = prompt_tokens
        if self._is_chat:
            for choice in range(choices):
                yield encode_event(self._form.chunk({"role": "assistant", "content": ""}, index=choice))

    def text(self, choice: int, text: str) -> Iterator[bytes]:
        yield encode_event(self._form.chunk({"content": text}, index=choice))

    def end(self, answers: Sequence[CallAnswer]) -> Iterator[bytes]:
        for choice, answer in enumerate(answers):
            if answer.tool_calls:
                calls = [{"index": number, **call} for number, call in enumerate(_calls(answer))]
                yield encode_event(self._form.chunk({"tool_calls": calls}, index=choice))
            yield encode_event(self._form.chunk({}, answer.finish_reason, index=choice))
        if self._with_usage:
            yield encode_event(self._form.without_choice(usage=_usage(answers, self._prompt_tokens).to_dict()))
        yield encode_event("[DONE]")

    def error(self, error: ApiError) -> bytes:
        return encode_event(error.body())


def _calls(answer: CallAnswer) -> list[dict[str, Any]]:
    return [call.data() for call in answer.tool_calls]


def _usage(answers: Sequence[CallAnswer], prompt_tokens: int) -> Usage:
    return Usage(prompt_tokens, sum(answer.tokens for answer in answers))
