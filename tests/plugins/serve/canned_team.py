"""The HTTP server in this process, with canned answers in place of engines, and a real sandbox.

Engines take long to start, so the tests of the API's formats and of the page use this server; test_server.py tests real
engines.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from marl_ray.core.connections import bind
from marl_ray.core.episode import Completion, Generation, SamplingSpec
from marl_ray.core.errors import UserError
from marl_ray.environments import ENVIRONMENTS
from marl_ray.evaluation.scoring import LocalSandboxPool
from marl_ray.http.request_guard import ServerLimits
from marl_ray.http.server import serve_http
from marl_ray.plugins.serve.app import make_app
from marl_ray.plugins.serve.team_player import TeamPlayer
from marl_ray.sandbox import Limits, SandboxSettings
from tests.factories import quickstart_config

AUX = "def aux(n):\n    return 2 * n\n"
ROOM = 4000
"""Characters of the longest prompt."""


class CannedStreams:
    """An agent that writes `aux`, or a main function that calls `aux`, up to a stop text, in parts of four characters.
    A prompt with the word `hang` is never answered, and one with the word `lost` fails like a lost engine. `calls` has
    the prompts, the histories and the sampling."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[int, ...], SamplingSpec]] = []
        self.hanging = threading.Event()
        self.aborted = threading.Event()

    async def stream(
        self,
        prompt: Any,
        sampling: SamplingSpec,
        on_text: Callable[[str], None] | None,
        raw: bool = False,
        history: tuple[int, ...] = (),
    ) -> Generation:
        self.calls.append((prompt, history, sampling))
        text = prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)
        if len(text) > ROOM:
            return Generation((1,) * len(text), ())
        if "lost" in text:
            raise UserError("agent 0 generator 0 died")
        answer = self._answer(text)[: 4 * sampling.max_new_tokens]
        answer = min((answer.partition(stop)[0] for stop in sampling.stop), key=len, default=answer)
        for start in range(0, len(answer), 4):
            if on_text is not None:
                on_text(answer[start : start + 4])
            await asyncio.sleep(0)
            if "hang" in text:
                await self._hang()
        size = -(-len(answer) // 4)
        reason = "length" if size >= sampling.max_new_tokens else "stop"
        return Generation((1,) * len(text), (Completion((1,) * size, answer, (0.0,) * size, reason, ((0, size),)),))

    async def _hang(self) -> None:
        self.hanging.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.aborted.set()

    @staticmethod
    def _answer(prompt: str) -> str:
        found = re.search(r"(?:Write the|Revise your) function `(\w+)`", prompt)
        return AUX if found is None else f"def {found[1]}(n):\n    return aux(n)\n"


@contextmanager
def canned_team(
    key: str | None = None, settings: dict[str, Any] | None = None, **limits: Any
) -> Iterator[tuple[str, CannedStreams, Any]]:
    """Yield the address of a server, the streams of all agents, and the server's guard. `settings` override the
    config."""
    config = quickstart_config(**(settings or {}))
    config = replace(config, model=replace(config.model, max_length=64))
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    streams = CannedStreams()
    programs = SandboxSettings(isolation="auto", limits=Limits(test_cpu_s=2.0, test_wall_s=20.0, program_wall_s=60.0))
    listening = bind("127.0.0.1", 0)
    with listening, LocalSandboxPool(programs, 1) as sandbox:
        player = TeamPlayer(config, environment, [streams, streams], sandbox)  # type: ignore[list-item]
        guard = make_app(player, ["aux", "main"], ServerLimits(**limits), key)
        loop, started = asyncio.new_event_loop(), threading.Event()
        serving = loop.create_task(serve_http(guard, listening, started.set))

        def run() -> None:
            asyncio.set_event_loop(loop)
            try:
                loop.run_until_complete(serving)
            except asyncio.CancelledError:
                pass

        thread = threading.Thread(target=run)
        thread.start()
        assert started.wait(60)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", streams, guard
        finally:
            loop.call_soon_threadsafe(serving.cancel)
            thread.join(120)
            loop.close()
