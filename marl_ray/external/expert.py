"""Another model as an expert: it reads the problem and the joint program and suggests an edit per function.

Speaks two protocols with the standard library alone: chat completions, for OpenAI and every endpoint that is
compatible with it (`OPENAI_BASE_URL`, `OPENAI_API_KEY`), and Anthropic's messages (`ANTHROPIC_BASE_URL`,
`ANTHROPIC_API_KEY`). Models whose name begins with `claude` are Anthropic's; a prefix `openai:` or
`anthropic:` decides otherwise. Keys are read from the environment for each request and appear in no message
or log; neither do the bodies of error replies, which may quote them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import IO, Any, Protocol, TypeVar

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

MAX_CONCURRENT = 8
"""Requests in flight at once, per expert."""
MAX_REPLY_BYTES = 1 << 18
MAX_EDIT_CHARS = 2000
MAX_REPLY_TOKENS = 2048
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
RETRIED_STATUS = {408, 409, 425, 429}
"""Client errors worth another try, as is every 5xx."""

REQUEST = """\
Several programmers each write one function of a Python program, without seeing each other's work.

Problem:
{problem}

Their program:
{program}

Suggest an edit for each of these functions: {names}. Reply with one JSON object and nothing else. Its keys \
are the functions' names, its values are strings: a short suggestion, or the corrected function."""


class ExpertConfig(Protocol):
    """The part of the configuration that says which expert is asked."""

    @property
    def mode(self) -> str: ...
    @property
    def expert_model(self) -> str | None: ...


class ExpertError(Exception):
    """No usable reply. `retry` tells whether another try may help, `refused` that the key is not accepted. The text
    holds no secret."""

    def __init__(self, message: str, retry: bool = True, refused: bool = False) -> None:
        super().__init__(message)
        self.retry = retry
        self.refused = refused


class ExpertRefused(RuntimeError):
    """The expert does not accept the key; the text is one line and does not hold the key."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a family of endpoints is, and which environment variables say so."""

    name: str
    key_variable: str
    base_variable: str
    default_base: str
    path: str


OPENAI = Endpoint("openai", "OPENAI_API_KEY", "OPENAI_BASE_URL", "https://api.openai.com/v1", "/chat/completions")
ANTHROPIC = Endpoint(
    "anthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "https://api.anthropic.com", "/v1/messages"
)


def endpoint_of(expert_model: str) -> tuple[Endpoint, str]:
    """The endpoint a model is asked by, and the model's name without a prefix that chose it."""
    for endpoint in (OPENAI, ANTHROPIC):
        if expert_model.startswith(f"{endpoint.name}:"):
            return endpoint, expert_model.removeprefix(f"{endpoint.name}:")
    return (ANTHROPIC if expert_model.startswith("claude") else OPENAI), expert_model


def check_expert_key(config: ExpertConfig) -> None:
    """Raise ValueError, in one line, when the mode needs an expert and none can be asked."""
    if config.mode != "expert_edits":
        return
    if not config.expert_model:
        raise ValueError("external.mode 'expert_edits' needs external.expert_model, the model that is asked")
    endpoint, _ = endpoint_of(config.expert_model)
    if not os.environ.get(endpoint.key_variable, "").strip():
        raise ValueError(
            f"external.mode 'expert_edits' with expert_model {config.expert_model!r} needs a key: "
            f"set the environment variable {endpoint.key_variable}"
        )


class Expert:
    """Asks one model. Each request has `timeout_s`; what fails is tried `retries` times more, with pauses."""

    def __init__(self, model: str, timeout_s: float = 60.0, retries: int = 3) -> None:
        self._endpoint, self._model = endpoint_of(model)
        self._timeout_s = timeout_s
        self._retries = retries
        # Of threads, not of asyncio: an expert outlives the event loop of a single step.
        self._slots = threading.BoundedSemaphore(MAX_CONCURRENT)

    async def edits(self, problem: str, program: str, names: Sequence[str]) -> dict[str, str]:
        """The suggested edit for each function; none when the expert cannot be heard.

        Raises ExpertRefused when the key is refused, since no later request can do better.
        """
        prompt = REQUEST.format(problem=problem.strip(), program=program.strip(), names=", ".join(names))
        for attempt in range(self._retries + 1):
            try:
                return await _in_thread(lambda: parse_edits(self._ask(prompt), names))
            except ExpertError as error:
                if error.refused:
                    raise ExpertRefused(
                        f"the expert {self._model} refused the key in {self._endpoint.key_variable} ({error})"
                    ) from None
                last = attempt == self._retries or not error.retry
                if last:
                    logger.warning(
                        "expert %s gave no edit (%s, attempt %d); the agents go on without",
                        self._model,
                        error,
                        attempt + 1,
                    )
                    return {}
            await asyncio.sleep(min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S))
        return {}

    def _ask(self, prompt: str) -> str:
        """One request, blocking. The reply's text, or ExpertError."""
        with self._slots:
            try:
                reply = json.loads(self._post(prompt))
                if self._endpoint is ANTHROPIC:
                    text = "".join(part["text"] for part in reply["content"] if part.get("type") == "text")
                else:
                    text = reply["choices"][0]["message"]["content"]
            except urllib.error.HTTPError as error:
                status = error.code
                error.close()
                raise ExpertError(
                    f"HTTP {status}", status in RETRIED_STATUS or status >= 500, refused=status in (401, 403)
                ) from None
            except TimeoutError:
                raise ExpertError("timed out") from None
            except (OSError, HTTPException) as error:
                reason = getattr(error, "reason", None)
                timed_out = isinstance(reason, TimeoutError)
                raise ExpertError("timed out" if timed_out else f"no connection: {type(error).__name__}") from None
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                raise ExpertError("reply not understood") from None
        if not isinstance(text, str):
            raise ExpertError("reply without text")
        return text

    def _post(self, prompt: str) -> bytes:
        endpoint = self._endpoint
        base = os.environ.get(endpoint.base_variable) or endpoint.default_base
        if not base.startswith(("http://", "https://")):
            raise ExpertError(f"{endpoint.base_variable} is not an http address", retry=False)
        key = os.environ.get(endpoint.key_variable, "").strip()
        body: dict[str, Any] = {"model": self._model, "messages": [{"role": "user", "content": prompt}]}
        headers = {"content-type": "application/json"}
        if endpoint is ANTHROPIC:
            body["max_tokens"] = MAX_REPLY_TOKENS
            headers |= {"x-api-key": key, "anthropic-version": "2023-06-01"}
        else:
            headers["authorization"] = f"Bearer {key}"
        request = urllib.request.Request(base.rstrip("/") + endpoint.path, json.dumps(body).encode(), headers)
        deadline = time.monotonic() + self._timeout_s
        with _OPENER.open(request, timeout=self._timeout_s) as response:
            data = b""
            # The socket's time-out is one of each read: a server that drips needs a deadline for the whole.
            while chunk := response.read1(65536):
                data += chunk
                if len(data) > MAX_REPLY_BYTES:
                    raise ExpertError("reply too long")
                if time.monotonic() > deadline:
                    raise TimeoutError
        return data


def parse_edits(text: str, names: Sequence[str]) -> dict[str, str]:
    """The edits in a reply: its first JSON object that names a function, fenced or within prose.

    Raises ExpertError when there is none. Functions that are left out, or given nothing, have no edit.
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
    raise ExpertError("reply holds no JSON object with the functions' names")


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:MAX_EDIT_CHARS].encode("utf-8", "replace").decode("utf-8").strip()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """urllib would send the key on to wherever a redirect points."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


async def _in_thread(function: Callable[[], Result]) -> Result:
    """Run a blocking function in a daemon thread: unlike an executor's, it cannot hold up a run's end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(done: Callable[[Any], None], outcome: object) -> None:
        if not future.cancelled():
            done(outcome)

    def work() -> None:
        done: Callable[[Any], None]
        outcome: object
        try:
            done, outcome = future.set_result, function()
        except Exception as error:
            done, outcome = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, done, outcome)

    threading.Thread(target=work, daemon=True, name="expert").start()
    return await future
