"""Another model as an expert: it is asked the environment's question and suggests an edit for each part of an answer.

It is asked by its vendor's own client: `anthropic`, or `openai` for every endpoint compatible with that; see
`marl_ray.external.endpoints` for who is asked. What holds whatever a client does: the key and the bodies of error
replies, which may quote it, appear in no message or log; redirects are not followed; a request has one deadline for
the whole of it, and a reply an upper size.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

from marl_ray.core.errors import UserError
from marl_ray.external.endpoints import ANTHROPIC, Endpoint

logger = logging.getLogger(__name__)

MAX_CONCURRENT = 8
"""Requests in flight at once, per expert."""
MAX_REPLY_BYTES = 1 << 18
MAX_EDIT_CHARS = 2000
MAX_REPLY_TOKENS = 2048
"""For Anthropic's protocol, which wants a number."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
RETRIED_STATUS = {408, 409, 425, 429}
"""Client errors worth another try, as is every 5xx."""
TALKATIVE = ("openai", "anthropic", "httpx2", "httpcore2")
"""Loggers that tell of addresses, requests and replies below the level of a warning."""


class ExpertError(Exception):
    """No usable reply. `retry` tells whether another try may help, `refused` that the key is not accepted. The text
    holds no secret."""

    def __init__(self, message: str, retry: bool = True, refused: bool = False) -> None:
        super().__init__(message)
        self.retry = retry
        self.refused = refused


class Expert:
    """Asks one model, from one event loop. Each request has `timeout_s`; what fails is tried `retries` times more,
    with pauses."""

    def __init__(self, endpoint: Endpoint, timeout_s: float = 60.0, retries: int = 3) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._retries = retries
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._client: Any = None
        self._told: set[str] = set()

    def __str__(self) -> str:
        return str(self._endpoint)

    @property
    def key_variable(self) -> str:
        """Environment variable that holds its key."""
        return self._endpoint.vendor.key_variable

    async def edits(self, question: str, names: Sequence[str]) -> dict[str, str] | None:
        """The suggested edit for each of the names that the question asks for; None when the expert cannot be heard.

        Raises UserError when the key is refused, since no later request can do better.
        """
        for attempt in range(self._retries + 1):
            try:
                async with self._slots:
                    return parse_edits(await self._ask(question), names)
            except ExpertError as error:
                if error.refused:
                    raise UserError(f"the expert {self} refused the key in {self.key_variable} ({error})") from None
                if attempt == self._retries or not error.retry:
                    self._tell(error)
                    return None
            await asyncio.sleep(min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S))
        return None

    def _tell(self, error: ExpertError) -> None:
        """Each kind of failure once: all are counted anyway."""
        if str(error) not in self._told:
            self._told.add(str(error))
            logger.warning("expert %s gave no edit (%s); more of this kind show in expert/failures alone", self, error)

    async def _ask(self, question: str) -> str:
        """One request. The reply's text, or ExpertError."""
        anthropic = self._endpoint.vendor is ANTHROPIC
        sdk: Any = importlib.import_module("anthropic" if anthropic else "openai")
        self._client = self._client or self._connect(sdk)
        request = {"model": self._endpoint.model, "messages": [{"role": "user", "content": question}]}
        try:
            async with asyncio.timeout(self._timeout_s):
                if anthropic:
                    reply = await self._client.messages.create(**request, max_tokens=MAX_REPLY_TOKENS)
                    text = "".join(part.text for part in reply.content if part.type == "text")
                else:
                    reply = await self._client.chat.completions.create(**request)
                    text = reply.choices[0].message.content
        except (TimeoutError, sdk.APITimeoutError):
            raise ExpertError("timed out") from None
        except sdk.APIStatusError as error:
            status = error.status_code
            retry = status in RETRIED_STATUS or status >= 500
            raise ExpertError(f"HTTP {status}", retry, refused=status in (401, 403)) from None
        except sdk.APIConnectionError as error:
            cause = error.__cause__
            if isinstance(cause, ExpertError):
                raise cause from None
            raise ExpertError(f"no connection: {type(cause).__name__}") from None
        except (sdk.APIError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise ExpertError("reply not understood") from None
        if not isinstance(text, str):
            raise ExpertError("reply without text")
        return text

    def _connect(self, sdk: Any) -> Any:
        """The vendor's client. Its own retries are off: `edits` counts them, bad replies included."""
        for name in TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING)
        client = sdk.AsyncAnthropic if self._endpoint.vendor is ANTHROPIC else sdk.AsyncOpenAI
        return client(
            api_key=os.environ[self.key_variable].strip(),
            base_url=self._endpoint.address,
            max_retries=0,
            timeout=self._timeout_s,
            http_client=sdk.DefaultAsyncHttpxClient(
                follow_redirects=False,  # a client would send the key on to wherever a redirect points
                headers={"accept-encoding": "identity"},  # the size that is limited is the one that is read
                event_hooks={"response": [_limit_size]},
            ),
        )


def parse_edits(text: str, names: Sequence[str]) -> dict[str, str]:
    """The edits in a reply: its first JSON object with one of the names, fenced or within prose.

    Raises ExpertError when there is none. Names that are left out, or given nothing, have no edit.
    """
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0:
        try:
            found, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict) and any(name in found for name in names):
            edits = {name: _as_text(found.get(name)) for name in names}
            return {name: edit for name, edit in edits.items() if edit}
        start = text.find("{", start + 1)
    raise ExpertError("reply holds no JSON object with the names it was asked for")


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:MAX_EDIT_CHARS].encode("utf-8", "replace").decode("utf-8").strip()


async def _limit_size(response: Any) -> None:
    """Hook of the HTTP client: replies, error replies too, end in an ExpertError when they are too long."""
    import httpx2

    whole = response.stream

    class Limited(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in whole:
                size += len(chunk)
                if size > MAX_REPLY_BYTES:
                    raise ExpertError("reply too long")
                yield chunk

        async def aclose(self) -> None:
            await whole.aclose()

    response.stream = Limited()
