"""A long-running service as the program: one process asks for tasks, plays their episodes and posts the rewards."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from marl_ray.plugins.gateway.options import GatewayConfig
from marl_ray.plugins.gateway.program_episode import ProgramEpisode
from marl_ray.plugins.gateway.program_result import ProgramFailed
from marl_ray.plugins.gateway.programs import CommandProgram, EpisodeProgram

logger = logging.getLogger(__name__)
POLL_S = 20.0
"""Seconds that a question for a task waits for one."""


class ServiceProgram(EpisodeProgram):
    """Episodes that a service asks for, with the token of the service (`GET /v1/tasks/next`), and plays with the token
    of each episode.

    The run starts the command once, and again if it ends. Without a command, the user starts the service: the run logs
    the address, and the file with the token, which only the user may read. For use from a single event loop.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self.token = secrets.token_urlsafe(24)
        self._command = None if config.command is None else CommandProgram(config)
        self._process: asyncio.Future[Any] | None = None
        self._waiting: deque[ProgramEpisode] = deque()
        self._open: set[str] = set()
        """Tokens of the episodes that wait or are played."""
        self._changed = asyncio.Condition()
        self._token_file: Path | None = None

    async def play(self, episode: ProgramEpisode) -> Any:
        process = self._start(episode.base_url)
        self._open.add(episode.token)
        async with self._changed:
            self._waiting.append(episode)
            self._changed.notify_all()
        reported = asyncio.ensure_future(episode.reported.wait())
        try:
            await asyncio.wait({reported, process}, return_when=asyncio.FIRST_COMPLETED)
            # A service may post its last result and end at once.
            if episode.reported.is_set():
                return episode.posted
            process.result()  # raises ProgramFailed for an exit code other than 0
            raise ProgramFailed("the service has ended before it posted the result of the episode")
        finally:
            reported.cancel()
            self._open.discard(episode.token)
            with contextlib.suppress(ValueError):  # the service has taken the episode
                self._waiting.remove(episode)

    async def next_episode(self) -> ProgramEpisode | None:
        """Return the next episode to play, None if there is none within `POLL_S` seconds."""
        try:
            async with asyncio.timeout(POLL_S), self._changed:
                await self._changed.wait_for(lambda: bool(self._waiting))
                return self._waiting.popleft()
        except TimeoutError:
            return None

    async def give_back(self, episode: ProgramEpisode) -> None:
        """Offer an episode again, before all others, whose service has gone before it received the episode."""
        async with self._changed:
            if episode.token in self._open:
                self._waiting.appendleft(episode)
                self._changed.notify_all()

    async def close(self) -> None:
        if self._process is not None:
            self._process.cancel()
            await asyncio.gather(self._process, return_exceptions=True)
            self._process = None
        if self._token_file is not None:
            self._token_file.unlink(missing_ok=True)
            self._token_file = None

    def _start(self, base_url: str) -> asyncio.Future[Any]:
        """Return the running process, or a future that never ends if the user starts the service."""
        if self._command is None:
            if self._token_file is None:
                # mkstemp makes a file that only the user may read.
                descriptor, name = tempfile.mkstemp(prefix="marl_ray_service_token_")
                with open(descriptor, "w", encoding="utf-8") as file:
                    file.write(self.token)
                self._token_file = Path(name)
                logger.info(f"waiting for a service: GET {base_url}/tasks/next, with the token in {name}")
            return asyncio.get_running_loop().create_future()
        if self._process is None or self._process.done():
            self._process = asyncio.ensure_future(self._command.serve(base_url, self.token))
        return self._process
