"""Requests to another model through its vendor's client: `anthropic`, or `openai` for every OpenAI-compatible endpoint
(see `marl_ray.external.endpoints`).

API keys and the bodies of error replies, which may quote keys, appear in no message and no log. Redirects are not
followed. Each request has one deadline, and each reply a maximum size.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from marl_ray.core.errors import UserError
from marl_ray.core.http_proxies import bypass_proxies_for_localhost
from marl_ray.external.endpoints import ANTHROPIC, Endpoint

T = TypeVar("T")
MAX_CONCURRENT = 8
"""Maximum concurrent requests per client."""
MAX_REPLY_BYTES = 1 << 18
MAX_REPLY_TOKENS = 2048
"""Maximum tokens of a reply, which Anthropic's protocol requires."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 8.0
"""First pause before a repeated request; each further pause is twice as long, up to the longest."""
LONGEST_WAIT_S = 60.0
"""Maximum wait that a server may request with `Retry-After`."""
RETRIED_STATUS = {408, 409, 425, 429}
"""Client errors that may be retried, like every 5xx."""
VERBOSE_LOGGERS = ("openai", "anthropic", "httpx2", "httpcore2")
"""Loggers that log addresses, requests and replies below the level WARNING."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A reply's text and its cost in tokens, 0 if the server does not report it."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0


class EndpointError(Exception):
    """A request without a usable reply. The message contains no secret. `retry`: a retry may succeed. `status`: the
    HTTP status of an error reply. `wait_s`: the wait that the server requests, in seconds. `requests`: the number of
    requests so far."""

    def __init__(
        self, message: str, retry: bool = True, status: int | None = None, wait_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.retry = retry
        self.status = status
        self.wait_s = wait_s
        self.requests = 1


class Client:
    """A client of one model, for one event loop. Each request has a timeout of `timeout_s` seconds, and is repeated up
    to `retries` times with pauses if the server's reply says that this may help. With `repeat_lost`, a request without
    a usable reply is repeated too, although it may have cost money. `role` names the model in errors."""

    def __init__(self, endpoint: Endpoint, timeout_s: float, retries: int, role: str, repeat_lost: bool) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._retries = retries
        self._role = role
        self._repeat_lost = repeat_lost
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._client: Any = None

    async def ask(self, question: str, read: Callable[[ModelReply], T]) -> tuple[T, int]:
        """Return `read(reply)`, which may raise EndpointError, and the number of requests. Raises EndpointError, and
        UserError if the key is refused."""
        requests = 0
        while True:
            requests += 1
            try:
                return read(await self._request(question)), requests
            except EndpointError as error:
                if error.status in (401, 403):
                    key = self.endpoint.key_variable
                    raise UserError(f"the {self._role} {self.endpoint} refused the key in {key} ({error})") from None
                error.requests = requests
                # A request that timed out may have been answered, and charged for.
                is_lost = error.status is None
                if requests > self._retries or not error.retry or (is_lost and not self._repeat_lost):
                    raise
                pause_s = min(FIRST_PAUSE_S * 2 ** (requests - 1), LONGEST_PAUSE_S)
                if error.wait_s is not None:
                    pause_s = error.wait_s
            await asyncio.sleep(pause_s)

    async def _request(self, question: str) -> ModelReply:
        """Send one request and return the reply. Raises EndpointError."""
        anthropic = self.endpoint.vendor is ANTHROPIC
        # The packages are optional, and take a second to import.
        sdk: Any = importlib.import_module("anthropic" if anthropic else "openai")
        self._client = self._client or self._connect(sdk)
        request = {"model": self.endpoint.model, "messages": [{"role": "user", "content": question}]}
        try:
            # The time limit begins with the request, behind the wait for a slot.
            async with self._slots, asyncio.timeout(self._timeout_s):
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
            raise EndpointError(f"HTTP {status}", retry, status, wait_s) from None
        except sdk.APIConnectionError as error:
            cause = error.__cause__
            if isinstance(cause, EndpointError):
                raise cause from None
            raise EndpointError(f"no connection: {type(cause).__name__}") from None
        except (sdk.APIError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise EndpointError("reply not understood") from None
        if not isinstance(text, str):
            raise EndpointError("reply without text")
        if anthropic:
            return ModelReply(text, _tokens(reply, "input_tokens"), _tokens(reply, "output_tokens"))
        return ModelReply(text, _tokens(reply, "prompt_tokens"), _tokens(reply, "completion_tokens"))

    def _connect(self, sdk: Any) -> Any:
        """Return the vendor's client without its own retries: the caller counts them with unusable replies."""
        # Logs of a run are shared more often than its keys and prompts should be.
        for name in VERBOSE_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        bypass_proxies_for_localhost()
        client = sdk.AsyncAnthropic if self.endpoint.vendor is ANTHROPIC else sdk.AsyncOpenAI
        return client(
            api_key=os.environ[self.endpoint.key_variable].strip(),
            base_url=self.endpoint.address,
            max_retries=0,
            timeout=self._timeout_s,
            http_client=sdk.DefaultAsyncHttpxClient(
                follow_redirects=False,  # a client would send the key to the redirect's target
                headers={"accept-encoding": "identity"},  # so that the limited size is the transferred size
                event_hooks={"response": [_limit_size]},
            ),
        )


def last_object(text: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the last JSON object in a text with one of the names as a key. Raises EndpointError if there is none.

    A reply may quote an object from the answer that it is about before it gives its own. Objects within an object that
    has one of the names do not count.

    Example:
        >>> last_object('It claims {"score": 10}. {"score": 2, "why": {"score": 9}}', ["score"])["score"]
        2
    """
    decoder = json.JSONDecoder()
    last = None
    start = text.find("{")
    while start >= 0:
        end = start + 1
        try:
            value, value_end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and any(name in value for name in names):
            last = value
            end = value_end
        start = text.find("{", end)
    if last is None:
        raise EndpointError("reply holds no JSON object with the names it was asked for")
    return last


def _seconds(header: str | None) -> float | None:
    """Return the seconds in `Retry-After`; dates are ignored."""
    if header is None or not header.strip().isdecimal():
        return None
    return min(float(header), LONGEST_WAIT_S)


def _tokens(reply: Any, name: str) -> int:
    count = getattr(getattr(reply, "usage", None), name, 0)
    # An own server may send anything, also `true` or a text.
    if type(count) is not int or count < 0:
        return 0
    return count


async def _limit_size(response: Any) -> None:
    """Raise EndpointError for a reply, also an error reply, above the maximum size (a hook of the HTTP client)."""
    import httpx2

    stream = response.stream

    class Limited(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in stream:
                size += len(chunk)
                if size > MAX_REPLY_BYTES:
                    raise EndpointError("reply too long")
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    response.stream = Limited()
