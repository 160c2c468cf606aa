"""One request to another model, by its vendor's own client: `anthropic`, or `openai` for every endpoint compatible with
that; see `marl_ray.external.endpoints` for who is asked.

What holds whatever a client does: the key and the bodies of error replies, which may quote it, appear in no message or
log; redirects are not followed; a request has one deadline for the whole of it, and a reply an upper size. The key is
read from its environment variable by the process that asks, which is the one that a command starts, and goes nowhere
else. Whether to ask again is the caller's to decide.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.external.endpoints import ANTHROPIC, Endpoint

MAX_CONCURRENT = 8
"""Requests in flight at once, per client."""
MAX_REPLY_BYTES = 1 << 18
MAX_REPLY_TOKENS = 2048
"""For Anthropic's protocol, which wants a number."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
LONGEST_WAIT_S = 60.0
"""Of what a server asks for in `Retry-After`."""
RETRIED_STATUS = {408, 409, 425, 429}
"""Client errors worth another try, as is every 5xx."""
TALKATIVE = ("openai", "anthropic", "httpx2", "httpcore2")
"""Loggers that tell of addresses, requests and replies below the level of a warning."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A reply's text and what it cost, in tokens; 0 where the server does not say."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0


class EndpointError(Exception):
    """No usable reply. `retry` tells whether another try may help, `refused` that the key is not accepted. `status` is
    the server's where it answered with an error, and `wait_s` how long it asks to wait. The text holds no secret."""

    def __init__(
        self,
        message: str,
        retry: bool = True,
        refused: bool = False,
        status: int | None = None,
        wait_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.retry = retry
        self.refused = refused
        self.status = status
        self.wait_s = wait_s


class Client:
    """Asks one model, from one event loop. Each request has `timeout_s`."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._client: Any = None

    def __str__(self) -> str:
        return str(self.endpoint)

    async def ask(self, question: str) -> ModelReply:
        """One request. Raises EndpointError."""
        async with self._slots:
            return await self._ask(question)

    async def _ask(self, question: str) -> ModelReply:
        anthropic = self.endpoint.vendor is ANTHROPIC
        sdk: Any = importlib.import_module("anthropic" if anthropic else "openai")
        self._client = self._client or self._connect(sdk)
        request = {"model": self.endpoint.model, "messages": [{"role": "user", "content": question}]}
        try:
            async with asyncio.timeout(self._timeout_s):
                if anthropic:
                    reply = await self._client.messages.create(**request, max_tokens=MAX_REPLY_TOKENS)
                    text = "".join(part.text for part in reply.content if part.type == "text")
                else:
                    reply = await self._client.chat.completions.create(**request)
                    text = reply.choices[0].message.content
        except (TimeoutError, sdk.APITimeoutError):
            raise EndpointError("timed out") from None
        except sdk.APIStatusError as error:
            status = error.status_code
            retry = status in RETRIED_STATUS or status >= 500
            wait_s = _seconds(error.response.headers.get("retry-after"))
            raise EndpointError(f"HTTP {status}", retry, status in (401, 403), status, wait_s) from None
        except sdk.APIConnectionError as error:
            cause = error.__cause__
            if isinstance(cause, EndpointError):
                raise cause from None
            raise EndpointError(f"no connection: {type(cause).__name__}") from None
        except (sdk.APIError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise EndpointError("reply not understood") from None
        if not isinstance(text, str):
            raise EndpointError("reply without text")
        asked, said = ("input_tokens", "output_tokens") if anthropic else ("prompt_tokens", "completion_tokens")
        return ModelReply(text, _tokens(reply, asked), _tokens(reply, said))

    def _connect(self, sdk: Any) -> Any:
        """The vendor's client. Its own retries are off: whoever asks counts them, bad replies included."""
        for name in TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING)
        client = sdk.AsyncAnthropic if self.endpoint.vendor is ANTHROPIC else sdk.AsyncOpenAI
        return client(
            api_key=os.environ[self.endpoint.key_variable].strip(),
            base_url=self.endpoint.address,
            max_retries=0,
            timeout=self._timeout_s,
            http_client=sdk.DefaultAsyncHttpxClient(
                follow_redirects=False,  # a client would send the key on to wherever a redirect points
                headers={"accept-encoding": "identity"},  # the size that is limited is the one that is read
                event_hooks={"response": [_limit_size]},
            ),
        )


def pause_s(attempt: int) -> float:
    """Before the try after number `attempt` (from 0)."""
    return min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S)


def first_object(text: str, names: Sequence[str]) -> dict[str, Any]:
    """The first JSON object in a text that has one of the names. Raises EndpointError when there is none."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0:
        try:
            found, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict) and any(name in found for name in names):
            return found
        start = text.find("{", start + 1)
    raise EndpointError("reply holds no JSON object with the names it was asked for")


def _seconds(header: str | None) -> float | None:
    """What `Retry-After` asks for; a date is left alone."""
    if header is None or not header.strip().isdecimal():
        return None
    return min(float(header), LONGEST_WAIT_S)


def _tokens(reply: Any, name: str) -> int:
    count = getattr(getattr(reply, "usage", None), name, 0)
    return count if type(count) is int and count >= 0 else 0


async def _limit_size(response: Any) -> None:
    """Hook of the HTTP client: replies, error replies too, end in an EndpointError when they are too long."""
    import httpx2

    whole = response.stream

    class Limited(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in whole:
                size += len(chunk)
                if size > MAX_REPLY_BYTES:
                    raise EndpointError("reply too long")
                yield chunk

        async def aclose(self) -> None:
            await whole.aclose()

    response.stream = Limited()
