"""Answers that a program reads while they are sampled.

A call whose first part has been sent is kept as a whole, even if the program closes the connection or ends: its text
may have influenced the reward, and tokens that the program has not read change only the variance of the gradient. A
call without a sent part is not part of the episode if the program closes the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

from marl_ray.http.request_formats import ApiError
from marl_ray.plugins.gateway.program_episode import CallAnswer
from marl_ray.plugins.gateway.tool_calls import CallFormat, text_before_calls


class StreamFormat(Protocol):
    """The server-sent events of one endpoint."""

    def start(self, choices: int, prompt_tokens: int) -> Iterator[bytes]:
        """Yield the events before the first text."""
        ...

    def text(self, choice: int, text: str) -> Iterator[bytes]:
        """Yield the events of a part of a choice's text."""
        ...

    def end(self, answers: Sequence[CallAnswer]) -> Iterator[bytes]:
        """Yield the events after all texts: tool calls, reasons of the ends and the usage."""
        ...

    def error(self, error: ApiError) -> bytes:
        """Return the event of an error after the first text."""
        ...


class CallStream:
    """The text of a call while it is sampled (a `CallListener`)."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.sent = ""
        """Text of the parts so far."""
        self._text = ""
        self._calls: CallFormat | None = None
        self._changed = asyncio.Event()
        self._is_closed = False

    def start(self, prompt_tokens: int, calls: CallFormat | None) -> None:
        self.prompt_tokens = prompt_tokens
        self._calls = calls

    def add(self, text: str) -> None:
        self._text += text
        self._changed.set()

    def close(self) -> None:
        """End the parts."""
        self._is_closed = True
        self._changed.set()

    async def wait_for_part(self) -> None:
        """Return as soon as there is a part, or no part will follow."""
        while not self._is_closed and not self._part():
            await self._changed.wait()
            self._changed.clear()

    async def parts(self) -> AsyncIterator[str]:
        """Yield the parts until `close`. The end of the text is withheld while a tool call may begin in it."""
        await self.wait_for_part()
        while part := self._part():
            self.sent += part
            yield part
            await self.wait_for_part()

    def _part(self) -> str:
        shown = self._text
        if self._calls is not None:
            shown = text_before_calls(shown, self._calls)
        return shown[len(self.sent) :]


async def stream_events(
    playing: asyncio.Future[list[CallAnswer]], stream: CallStream, form: StreamFormat
) -> AsyncIterator[bytes]:
    """Yield the events of a call. The end of the connection does not stop the call."""
    is_started = False
    async for part in stream.parts():
        if not is_started:
            for event in form.start(1, stream.prompt_tokens):
                yield event
        is_started = True
        for event in form.text(0, part):
            yield event
    try:
        # A client that has gone cancels this generator, and not the call.
        answers = await asyncio.shield(playing)
        if not is_started:
            for event in form.start(len(answers), answers[0].prompt_tokens):
                yield event
        sent = stream.sent
        for choice, answer in enumerate(answers):
            rest = ""
            # Before tool calls, spaces around the text may have been sent that the answer lacks.
            if answer.text.startswith(sent):
                rest = answer.text[len(sent) :]
            if rest:
                for event in form.text(choice, rest):
                    yield event
            sent = ""  # only the first choice is streamed
    except ApiError as error:
        yield form.error(error)
        return
    for event in form.end(answers):
        yield event
