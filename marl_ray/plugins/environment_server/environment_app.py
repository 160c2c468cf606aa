"""The HTTP and WebSocket server of an environment, on localhost, with the messages of OpenEnv 0.3.

| endpoint | |
|---|---|
| `WS /ws` | one episode at a time per connection: messages `reset`, `step`, `state`, `close` |
| `POST /reset` | `seed` or `task`; starts an episode, whose `episode_id` is in the observation |
| `POST /step` | `action` and `episode_id`; answers the last prompt of that episode |
| `GET /state?episode_id=` | the state of that episode |
| `GET /tasks` | the ids of the `tasks`, and the number of `agents` |
| `GET /schema`, `/metadata`, `/health` | as in OpenEnv |

A reset takes the task with the number `seed`, or the id `task`, or else the next task of the split.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from marl_ray.config import Config
from marl_ray.core.episode import Task
from marl_ray.core.text import json_or
from marl_ray.environments.base import Environment, Executor
from marl_ray.http.request_formats import ApiError, parse_object
from marl_ray.plugins.environment_server.served_episode import EpisodeError, Observation, ServedEpisode

MAX_EPISODES = 1024
"""Open episodes of the HTTP endpoints. The oldest is closed for a further one."""
TEXT = {"type": "string"}
NUMBERS = {"type": "object", "additionalProperties": {"type": "number"}}
OBSERVATION = {
    "agent": {"type": ["integer", "null"], "description": "number of the agent that acts next"},
    "role": {"type": ["string", "null"], "description": "its role in this task"},
    "prompt": {"description": "its prompt: a text, or chat messages; null at the end"},
    "rewards": {"type": "array", "items": {"type": "number"}, "description": "of each agent in a turn now complete"},
    "metrics": NUMBERS,
    "task": TEXT,
    "episode_id": TEXT,
}
SCHEMA = {
    "action": {"type": "object", "properties": {"text": TEXT | {"description": "answer"}}, "required": ["text"]},
    "observation": {"type": "object", "properties": OBSERVATION},
    "state": {"type": "object", "properties": {"episode_id": TEXT, "step_count": {"type": "integer"}, "task": TEXT}},
}


@dataclass(slots=True)
class Session:
    """The episode of a connection, None before the first reset."""

    name: str = ""
    episode: ServedEpisode | None = None

    async def close(self) -> None:
        if self.episode is not None:
            await self.episode.close()


class EnvironmentApp:
    """The episodes of one environment, and the endpoints that play them."""

    def __init__(
        self, config: Config, environment: Environment[Any], tasks: Sequence[Task], executor: Executor
    ) -> None:
        self._config = config
        self._environment = environment
        self._executor = executor
        self._tasks = {task.id: task for task in tasks}
        self._next = 0
        self._episodes: dict[str, ServedEpisode] = {}

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the endpoints."""
        return [
            Route("/health", self._health),
            Route("/schema", self._schema),
            Route("/metadata", self._metadata),
            Route("/tasks", self._list_tasks),
            Route("/reset", self._reset, methods=["POST"]),
            Route("/step", self._step, methods=["POST"]),
            Route("/state", self._state),
            WebSocketRoute("/ws", self._session),
        ]

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "healthy"})

    async def _schema(self, request: Request) -> Response:
        return JSONResponse(SCHEMA)

    async def _metadata(self, request: Request) -> Response:
        name = self._config.environment
        return JSONResponse({"name": name, "description": f"environment {name} with {len(self._tasks)} tasks"})

    async def _list_tasks(self, request: Request) -> Response:
        return JSONResponse({"tasks": list(self._tasks), "agents": self._config.num_agents})

    async def _reset(self, request: Request) -> Response:
        name, episode = self._opened(parse_object(await request.body()))
        self._episodes[name] = episode
        while len(self._episodes) > MAX_EPISODES:
            oldest = next(iter(self._episodes))
            await self._episodes.pop(oldest).close()
        return JSONResponse(await self._observed(name, episode, episode.begin()))

    async def _step(self, request: Request) -> Response:
        asked = parse_object(await request.body())
        name = str(asked.get("episode_id"))
        episode = self._episode(name)
        observed = await self._observed(name, episode, episode.step(_text(asked.get("action"))))
        if observed["done"]:
            await self._episodes.pop(name).close()
        return JSONResponse(observed)

    async def _state(self, request: Request) -> Response:
        name = request.query_params.get("episode_id", "")
        return JSONResponse(_state_of(name, self._episode(name)))

    async def _session(self, socket: WebSocket) -> None:
        """Serve the messages of one connection."""
        await socket.accept()
        session = Session()
        try:
            while True:
                message = json_or(await socket.receive_text(), None)
                if not isinstance(message, dict):
                    message = {}
                if message.get("type") == "close":
                    break
                try:
                    reply = await self._reply(session, message.get("type"), message.get("data"))
                except ApiError as error:
                    reply = _error(str(error), "EXECUTION_ERROR")
                await socket.send_text(json.dumps(reply))
        except WebSocketDisconnect:
            return
        finally:
            await session.close()
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # the client has closed the connection
                await socket.close()

    async def _reply(self, session: Session, kind: Any, data: Any) -> dict[str, Any]:
        """Return the reply to a message of a connection. Raises ApiError."""
        if kind == "reset":
            await session.close()
            session.name, session.episode = self._opened(data or {})
            observed = await self._observed(session.name, session.episode, session.episode.begin())
            return {"type": "observation", "data": observed}
        if kind not in ("step", "state"):
            return _error(f"unknown message type {kind!r:.80}", "UNKNOWN_TYPE")
        if session.episode is None:
            return _error("there is no episode: reset starts one", "SESSION_ERROR")
        if kind == "state":
            return {"type": "state", "data": _state_of(session.name, session.episode)}
        observed = await self._observed(session.name, session.episode, session.episode.step(_text(data)))
        return {"type": "observation", "data": observed}

    def _opened(self, asked: Any) -> tuple[str, ServedEpisode]:
        """Return the id and the episode of a reset. Raises ApiError."""
        if not isinstance(asked, Mapping):
            raise ApiError(400, "a reset is an object")
        seed = asked.get("seed")
        wanted = asked.get("task")
        if wanted is None:
            if seed is None:
                seed = self._next
                self._next += 1
            if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
                raise ApiError(400, "seed should be a whole number from 0", "invalid_value", "seed")
            names = list(self._tasks)
            wanted = names[seed % len(names)]
        if not isinstance(wanted, str) or wanted not in self._tasks:
            raise ApiError(404, f"there is no task {wanted!r:.80}", "not_found", "task")
        name = asked.get("episode_id") or secrets.token_urlsafe(12)
        if not isinstance(name, str) or name in self._episodes:
            raise ApiError(400, "episode_id should be a text that no open episode has", "invalid_value", "episode_id")
        return name, ServedEpisode(self._config, self._environment, self._tasks[wanted], self._executor)

    def _episode(self, name: str) -> ServedEpisode:
        if name not in self._episodes:
            raise ApiError(404, "there is no open episode with this episode_id", "not_found", "episode_id")
        return self._episodes[name]

    async def _observed(self, name: str, episode: ServedEpisode, going: Awaitable[Observation]) -> dict[str, Any]:
        """Return the reply to a reset or step. Raises ApiError."""
        try:
            seen = await going
        except EpisodeError as error:
            raise ApiError(409, str(error), "invalid_state") from None
        data = asdict(seen) | {"task": episode.task.id, "episode_id": name}
        # OpenEnv has these two beside the observation.
        reward = data.pop("reward")
        done = data.pop("done")
        return {"observation": data, "reward": reward, "done": done}


def _text(action: Any) -> str:
    if not isinstance(action, Mapping) or not isinstance(action.get("text"), str):
        raise ApiError(400, 'an action should be {"text": ...}', "invalid_value", "action")
    return action["text"]


def _state_of(name: str, episode: ServedEpisode) -> dict[str, Any]:
    return {"episode_id": name, "step_count": episode.steps, "task": episode.task.id}


def _error(message: str, code: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code}}
