"""Endpoints of the gateway. A request acts on the episode whose token it has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from marl_ray.core.text import json_or
from marl_ray.http.reply_format import model_entry
from marl_ray.http.request_formats import ApiError, parse_request
from marl_ray.http.server import api_errors, event_stream, first_part, health, until_disconnect
from marl_ray.plugins.gateway.call_streams import CallStream, StreamFormat, stream_events
from marl_ray.plugins.gateway.chat_requests import (
    UNSUPPORTED_IN_EPISODES,
    ChunkEvents,
    ProgramChatRequest,
    ProgramTextRequest,
    call_options,
    chat_reply,
)
from marl_ray.plugins.gateway.message_requests import MessageEvents, MessagesRequest, message_reply
from marl_ray.plugins.gateway.program_episode import CallAnswer, ProgramEpisode

EPISODE = "marl_ray.episode"
"""Key of the episode in the scope of a request."""
SERVICE = "marl_ray.service"
"""Key of the service whose token a request has."""
T = TypeVar("T")


def gateway_routes() -> list[Route]:
    """Return the routes of the gateway."""
    return [
        Route("/health", health),
        Route("/v1/models", models),
        Route("/v1/models/{name}", model),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/tasks/next", next_task),
        Route("/v1/episode/task", episode_task),
        Route("/v1/episode/reward", episode_reward, methods=["POST"]),
    ]


async def models(request: Request) -> Response:
    """List the agents."""
    entries = [model_entry(access.name) for access in _episode(request).agents]
    return JSONResponse({"object": "list", "data": entries})


async def model(request: Request) -> Response:
    """Describe one agent."""
    name = request.path_params["name"]
    _episode(request).agent(name)
    return JSONResponse(model_entry(name))


async def chat(request: Request) -> Response:
    """Answer /v1/chat/completions."""
    episode = _episode(request)
    asked = parse_request(ProgramChatRequest, await request.body(), UNSUPPORTED_IN_EPISODES)
    agent = episode.agent(asked.model)
    given = [message.message() for message in asked.messages]
    call = partial(episode.chat, agent, given, asked.offered(), call_options(asked))
    if asked.stream:
        return await _streamed(request, call, ChunkEvents(asked, is_chat=True))
    answers = await _answered(request, call())
    return JSONResponse(chat_reply(asked.model, answers, is_chat=True))


async def completions(request: Request) -> Response:
    """Answer /v1/completions."""
    episode = _episode(request)
    asked = parse_request(ProgramTextRequest, await request.body(), UNSUPPORTED_IN_EPISODES)
    agent = episode.agent(asked.model)
    call = partial(episode.complete, agent, asked.prompt, call_options(asked))
    if asked.stream:
        return await _streamed(request, call, ChunkEvents(asked, is_chat=False))
    answers = await _answered(request, call())
    return JSONResponse(chat_reply(asked.model, answers, is_chat=False))


async def messages(request: Request) -> Response:
    """Answer /v1/messages, the endpoint of Anthropic's API."""
    episode = _episode(request)
    asked = parse_request(MessagesRequest, await request.body(), ())
    agent = episode.agent(asked.model)
    call = partial(episode.chat, agent, asked.conversation(), asked.offered(), asked.options())
    if asked.stream:
        return await _streamed(request, call, MessageEvents(asked.model))
    answers = await _answered(request, call())
    return JSONResponse(message_reply(asked.model, answers[0]))


async def next_task(request: Request) -> Response:
    """Return the next episode for a service: its task, its token and the address of the gateway; 204 if there is none
    yet."""
    service = request.scope[SERVICE]
    if service is None:
        raise ApiError(401, "this endpoint needs the token of the service", "invalid_api_key")
    episode = await until_disconnect(request, asyncio.ensure_future(service.next_episode()))
    if episode is None:
        return Response(status_code=204)
    await asyncio.sleep(0)  # the event loop reads whether the connection was closed meanwhile
    if await request.is_disconnected():
        await service.give_back(episode)
        raise ApiError(499, "the service closed the connection")
    data = {"task": episode.task_data, "token": episode.token, "base_url": episode.base_url}
    return Response(json.dumps(data, default=str), media_type="application/json")


async def episode_task(request: Request) -> Response:
    """Return the task of the episode."""
    data = json.dumps(_episode(request).task_data, default=str)
    return Response(data, media_type="application/json")


async def episode_reward(request: Request) -> Response:
    """Take the reward of the episode: a number, or an object as in `parse_result`."""
    posted = json_or(await request.body(), None)
    if posted is None:
        raise ApiError(400, "the body is not JSON in UTF-8")
    episode = _episode(request)
    episode.posted = posted
    episode.reported.set()
    return JSONResponse({"status": "ok"})


def _episode(request: Request) -> ProgramEpisode:
    episode = request.scope[EPISODE]
    if not isinstance(episode, ProgramEpisode):  # the guard has refused other requests below /v1
        raise ApiError(401, "no running episode has this token", "invalid_api_key")
    return episode


async def _answered(request: Request, call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a call, which is cancelled if the program closes the connection. Raises ApiError."""
    return await until_disconnect(request, asyncio.ensure_future(_with_status(call)))


async def _with_status(call: Coroutine[Any, Any, T]) -> T:
    with api_errors():
        return await call


async def _streamed(
    request: Request, call: Callable[[CallStream], Coroutine[Any, Any, list[CallAnswer]]], form: StreamFormat
) -> Response:
    """Return a stream of server-sent events. An error before the first part has a status. Raises ApiError."""
    stream = CallStream()
    playing = asyncio.ensure_future(_with_status(call(stream)))
    playing.add_done_callback(lambda _: stream.close())
    await first_part(request, playing, stream.wait_for_part())
    if playing.done():
        playing.result()
    # From here on the call belongs to the episode, even if the program closes the connection.
    _episode(request).keep(playing)
    return event_stream(stream_events(playing, stream, form))
