"""Requests of the OpenAI API, checked and converted; and the API's errors.

`marl_ray` in a request body is this server's extension for the model `team`: the task's entry point, tests and further
fields, and whether the answer has each agent's part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from marl_ray.core.text import json_or

TEAM = "team"
MAX_STOPS = 8
MAX_CHOICES = 16
UNSUPPORTED = ("tools", "functions", "tool_choice", "logit_bias", "logprobs", "top_logprobs", "audio", "suffix", "echo")
"""Settings that would change the answer, and that this server does not have."""


class ApiError(Exception):
    """An error with its HTTP status, in the API's format."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param

    def body(self) -> dict[str, Any]:
        """Return the body of the reply."""
        kind = "invalid_request_error"
        if self.status == 401:
            kind = "authentication_error"
        elif self.status == 429:
            kind = "rate_limit_error"
        elif self.status >= 500:
            kind = "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def unknown_model(name: str, known: Iterable[str]) -> ApiError:
    """Return the error of a request for a model that does not exist."""
    message = f"the model {name[:100]!r} does not exist: there are {', '.join(known)}"
    return ApiError(404, message, "model_not_found", "model")


class Part(BaseModel):
    """A part of a message; only text is supported."""

    type: Literal["text"]
    text: str


def text_of(content: str | list[Any] | None) -> str:
    """Return the content of a message as one text, "" for None."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


class RequestMessage(BaseModel):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]

    @property
    def text(self) -> str:
        """The content as one text."""
        return text_of(self.content)


class TestCase(BaseModel):
    """A test of a program that reads standard input."""

    model_config = ConfigDict(extra="forbid")
    stdin: str
    stdout: str


class TeamFields(BaseModel):
    """The extension `marl_ray` of a request."""

    model_config = ConfigDict(extra="forbid")
    entry_point: Annotated[str, Field(pattern=r"^[A-Za-z_]\w{0,99}$")] | None = None
    tests: str | list[str] | list[TestCase] | None = None
    fields: dict[str, str | list[str] | bool | int] = {}
    parts: bool = False


class StreamOptions(BaseModel):
    """Options of a streamed reply."""

    include_usage: bool = False


Text = Annotated[str, Field(max_length=1 << 20)]
Small = Annotated[int, Field(ge=1, le=MAX_CHOICES)]


class SamplingRequest(BaseModel):
    """Settings that chat and text completions share."""

    model_config = ConfigDict(strict=True)
    model: Annotated[str, Field(max_length=200)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    n: Small | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    marl_ray: TeamFields = TeamFields()

    @property
    def stops(self) -> list[str]:
        """The texts that end an answer."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop
        # An empty text would end every answer at once.
        return [stop for stop in given or () if stop]


class ChatRequest(SamplingRequest):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[RequestMessage], Field(min_length=1, max_length=256)]


class CompletionRequest(SamplingRequest):
    """Body of /v1/completions."""

    prompt: Text | Annotated[list[Text], Field(min_length=1, max_length=64)]


def parse_request(kind: type[BaseModel], body: bytes, unsupported: Sequence[str] = UNSUPPORTED) -> Any:
    """Return the request in a body. Raises ApiError (400), also for settings that are `unsupported`."""
    content = parse_object(body)
    # Values that turn a setting off, such as `tools: []`, are no reason to refuse a request.
    for name in unsupported:
        if content.get(name):
            raise ApiError(400, f"{name} is not supported", "unsupported_parameter", name)
    wanted = content.get("response_format")
    if wanted and wanted != {"type": "text"} and "response_format" not in kind.model_fields:
        raise ApiError(400, "response_format is not supported", "unsupported_parameter", "response_format")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        # The input may have secrets, which belong in no reply.
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])[:100]
        raise ApiError(400, f"{place}: {first['msg']}", "invalid_value", place) from None


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body. Raises ApiError (400)."""
    content = json_or(body, None)
    if content is None:
        raise ApiError(400, "the body is not JSON in UTF-8")
    if not isinstance(content, dict):
        raise ApiError(400, "the body is not a JSON object")
    return content


def encode_event(data: Mapping[str, Any] | str) -> bytes:
    """Return one server-sent event."""
    if not isinstance(data, str):
        data = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"data: {data}\n\n".encode()
