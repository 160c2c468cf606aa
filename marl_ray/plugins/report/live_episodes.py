"""All recorded episodes of a run as pages of a server, for a page that has only some of them.

| path | answer |
|---|---|
| `episodes` | JSON list of all episodes, without their texts |
| `episodes?text=WORDS` | JSON list of the ids of the episodes with an answer that contains the words |
| `episode/ID` | one episode with all its texts |
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from marl_ray.core.errors import UserError
from marl_ray.http.request_formats import ApiError
from marl_ray.plugins.report.episode_data import one_episode
from marl_ray.plugins.report.episode_file import EpisodeFile
from marl_ray.plugins.report.episode_tokens import TokenLog
from marl_ray.storage.run_folder import RunFolder

NOT_KEPT = {"cache-control": "no-store"}
LONGEST_SEARCH = 200
"""Characters of a search."""


class LiveEpisodes:
    """The episodes of a run that may be in progress. Its endpoints run in threads."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._file = EpisodeFile(folder.episodes)
        self._lock = threading.Lock()

    def routes(self) -> list[BaseRoute]:
        """Return the routes beside the page of the run."""
        return [Route("/episodes", self.get_list), Route("/episode/{id}", self.get_episode)]

    def get_list(self, request: Request) -> Response:
        """Answer `episodes`."""
        words = request.query_params.get("text", "")[:LONGEST_SEARCH]

        def listed() -> Any:
            if words:
                return self._file.containing(words)
            return [episode.data() for episode in self._file.episodes]

        return self._answer(listed)

    def get_episode(self, request: Request) -> Response:
        """Answer `episode/ID`."""

        def found() -> Any:
            listed = self._file.find(request.path_params["id"])
            if listed is None:
                raise ApiError(404, "the run has no such episode")
            return one_episode(self._file, TokenLog(self._folder, self._file), listed)

        return self._answer(found)

    def _answer(self, data: Callable[[], Any]) -> Response:
        """Return data of the present episodes."""
        with self._lock, damage_is_answered():
            self._file.update()
            # Escapes of ASCII: UTF-8 cannot express the halves of characters that models write.
            return Response(json.dumps(data()), media_type="application/json", headers=NOT_KEPT)


@contextmanager
def damage_is_answered() -> Iterator[None]:
    """Answer a damaged file with an error of the server."""
    try:
        yield
    except UserError as error:
        raise ApiError(500, str(error)[:200]) from None
