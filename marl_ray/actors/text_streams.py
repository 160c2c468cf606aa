"""Streamed completions of one policy's generators, for a server or a gateway.

A completion is sampled by one call that returns the whole completion. While completions with a listener are sampled,
one loop per policy asks the replicas for the texts so far of all of them together, which costs one call per replica and
`INTERVAL_S` instead of one per token. Requests on a lost replica are repeated on another replica; equal seeds and
weights give the same text, so a listener receives each part once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.handle import Deadline, Handle
from marl_ray.core.chat import Prompt, TokenPrompt
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import Generation, SamplingSpec
from marl_ray.core.errors import UserError

if TYPE_CHECKING:
    from marl_ray.actors.generator_group import GeneratorGroup

WAIT_S = 0.1
"""Maximum time in seconds that a replica waits for the next token before it answers."""
INTERVAL_S = 0.05
"""Minimum time in seconds between two questions to a replica."""
CALL = Deadline(60.0, "", "to report its progress")
OnText = Callable[[str], None]
"""Receives the next part of a completion's text."""


class TextStream:
    """One streamed completion: passes each new part of its text to `on_text`. The end of the text is withheld while it
    is an incomplete character."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._sent = ""

    def update(self, text: str, complete: bool = False) -> None:
        """Pass on the new part of `text`, the whole text so far."""
        shown = text if complete else text.rstrip("\ufffd")
        if len(shown) > len(self._sent) and shown.startswith(self._sent):
            self._on_text(shown[len(self._sent) :])
            self._sent = shown


class TextStreams:
    """Streamed completions of one policy. For use from a single event loop."""

    def __init__(self, group: GeneratorGroup, rollout_s: float) -> None:
        self.group = group
        self._deadline = Deadline(rollout_s, "rollout_s", "to generate")
        self._streams: dict[str, TextStream] = {}
        self._numbers = count()
        self._poller: asyncio.Task[None] | None = None

    async def stream(
        self,
        prompt: Prompt | TokenPrompt,
        sampling: SamplingSpec,
        on_text: OnText | None,
        raw: bool = False,
        history: tuple[int, ...] = (),
    ) -> Generation:
        """Sample one completion (`GenerationActor.stream`) and return it; its text reaches `on_text`, if there is one,
        in parts. Cancelling the call stops the completion on its replica."""
        name = f"stream-{next(self._numbers)}"
        stream = None
        if on_text is not None:
            stream = TextStream(on_text)
            self._streams[name] = stream
            if self._poller is None or self._poller.done():
                self._poller = asyncio.get_running_loop().create_task(self._poll())
        try:
            arguments = (name, prompt, sampling, stream is not None, raw, history)
            generation = await self.group.call(1, self._deadline, GenerationActor.stream, *arguments)
        except asyncio.CancelledError:
            await self._abort(name)
            raise
        finally:
            self._streams.pop(name, None)
        if stream is not None:
            for completion in generation.completions:
                stream.update(completion.text, complete=True)
        return generation

    async def close(self) -> None:
        """End the loop that asks for texts."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)

    async def _abort(self, name: str) -> None:
        calls = []
        for replica in self.group.replicas.serving():
            calls.append(replica.call(GenerationActor.abort, name).within(CALL))
        await asyncio.gather(*calls, return_exceptions=True)  # a lost replica has stopped too

    async def _poll(self) -> None:
        while self._streams:
            try:
                replicas = await self.group.replicas.wait_ready()
            except UserError:  # no replica is left; the calls for completions raise it too
                return
            await gather(asyncio.sleep(INTERVAL_S), *(self._poll_replica(replica) for replica in replicas))

    async def _poll_replica(self, replica: Handle[GenerationActor]) -> None:
        try:
            texts = await replica.call(GenerationActor.progress, WAIT_S).within(CALL)
        except UserError:  # the calls for completions handle the loss
            await asyncio.sleep(INTERVAL_S)
            return
        for name, text in texts.items():
            if name in self._streams:
                self._streams[name].update(text)
