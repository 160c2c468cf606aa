"""Endpoints of the OpenAI-compatible API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from marl_ray.core.concurrency import gather
from marl_ray.core.episode import Task
from marl_ray.http.reply_format import ReplyFormat, Usage, model_entry
from marl_ray.http.request_formats import (
    TEAM,
    ApiError,
    ChatRequest,
    CompletionRequest,
    SamplingRequest,
    encode_event,
    parse_request,
    unknown_model,
)
from marl_ray.http.request_guard import ServerLimits
from marl_ray.http.server import api_errors, event_stream, first_part, health, until_disconnect
from marl_ray.plugins.serve.team_player import Answer, OnEvent, TeamPlayer
from marl_ray.plugins.serve.team_tasks import read_tasks, task_text

Events = asyncio.Queue[dict[str, Any] | None]


class ApiRoutes:
    """The endpoints, for one team."""

    def __init__(self, player: TeamPlayer, roles: list[str | None], limits: ServerLimits) -> None:
        self.player = player
        self._roles = roles
        self._answer_s = limits.answer_s
        self._max_answers = limits.requests
        self._places = asyncio.Semaphore(limits.requests)
        """Places of answers in progress, of all requests."""
        self._turn = asyncio.Lock()
        """Held by the answer that begins next."""
        self.created = int(time.time())
        self.agents = {f"agent_{number}": number for number in range(player.config.num_agents)}

    def routes(self) -> list[Route]:
        """Return the routes of the API."""
        return [
            Route("/health", health),
            Route("/v1/models", self.models),
            Route("/v1/models/{name}", self.model),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
        ]

    async def models(self, request: Request) -> Response:
        """List the team and its agents."""
        entries = list(map(self._model, (TEAM, *self.agents)))
        return JSONResponse({"object": "list", "data": entries})

    async def model(self, request: Request) -> Response:
        """Describe one model."""
        name = request.path_params["name"]
        self._agent(name)
        return JSONResponse(self._model(name))

    async def chat(self, request: Request) -> Response:
        """Answer /v1/chat/completions."""
        asked = parse_request(ChatRequest, await request.body())
        agent = self._agent(asked.model)
        form = ReplyFormat(asked.model, is_chat=True)
        self._check_choices(asked, 1)
        if agent is None:
            (task,) = await self._tasks([_only_user_message(asked)], asked)
            return await self._reply(request, asked, form, [partial(self.player.ask_team, task, asked)])
        messages = []
        for message in asked.messages:
            # Chat templates do not know OpenAI's newer name of the system.
            role = "system" if message.role == "developer" else message.role
            messages.append({"role": role, "content": message.text})
        calls = [partial(self.player.ask_agent, agent, messages, asked, choice) for choice in range(asked.n or 1)]
        return await self._reply(request, asked, form, calls)

    async def completions(self, request: Request) -> Response:
        """Answer /v1/completions."""
        asked = parse_request(CompletionRequest, await request.body())
        agent = self._agent(asked.model)
        prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
        self._check_choices(asked, len(prompts))
        calls: list[Ask] = []
        if agent is None:
            for task in await self._tasks(prompts, asked):
                calls.append(partial(self.player.ask_team, task, asked))
        else:
            for prompt in prompts:
                for choice in range(asked.n or 1):
                    calls.append(partial(self.player.ask_agent, agent, prompt, asked, choice))
        return await self._reply(request, asked, ReplyFormat(asked.model, is_chat=False), calls)

    def _check_choices(self, asked: SamplingRequest, prompts: int) -> None:
        """Raise ApiError (400) for too many answers to one request."""
        choices = prompts * (asked.n or 1)
        if asked.stream and choices > 1:
            raise ApiError(400, "a streamed reply has one choice", "unsupported_parameter", "stream")
        if choices > self._max_answers:
            message = f"the request asks for {choices} answers, more than {self._max_answers} (--max-requests)"
            raise ApiError(400, message, "too_large", "n")

    async def _tasks(self, prompts: Sequence[str], asked: SamplingRequest) -> list[Task]:
        """Return the tasks of a request. Raises ApiError."""
        try:
            async with asyncio.timeout(self._answer_s):
                return await read_tasks(prompts, asked.marl_ray)
        except TimeoutError:
            raise ApiError(504, f"the tests were not parsed within {self._answer_s:g} s", "timeout") from None

    def _agent(self, name: str) -> int | None:
        """Return the number of an agent, None for the team. Raises ApiError (404) for another name."""
        if name != TEAM and name not in self.agents:
            raise unknown_model(name, (TEAM, *self.agents))
        return self.agents.get(name)

    def _model(self, name: str) -> dict[str, Any]:
        entry = model_entry(name, self.created)
        if name in self.agents and self._roles[self.agents[name]]:
            entry["role"] = self._roles[self.agents[name]]
        return entry

    async def _reply(
        self, request: Request, asked: SamplingRequest, form: ReplyFormat, calls: Sequence[Ask]
    ) -> Response:
        if asked.stream:
            first: Events = asyncio.Queue()
            play = asyncio.ensure_future(self._play(calls[0], first))
            event = await first_part(request, play, _first_of(first, play))
            return event_stream(self._events(asked, form, play, first, event))
        answering = asyncio.ensure_future(gather(*(self._play(call, None) for call in calls)))
        answers = await until_disconnect(request, answering)
        return JSONResponse(_reply(form, answers, asked.marl_ray.parts))

    async def _play(self, call: Ask, events: Events | None) -> Answer:
        """Return the answer within the time limit, and report its events. Raises ApiError."""
        try:
            with api_errors():
                async with asyncio.timeout(self._answer_s), self._places:
                    async with self._turn:
                        # Submitting takes a millisecond: other requests come between two answers.
                        await asyncio.sleep(0)
                    return await call(None if events is None else events.put_nowait)
        except TimeoutError:
            raise ApiError(504, f"no answer within {self._answer_s:g} s", "timeout") from None
        finally:
            if events is not None:
                events.put_nowait(None)

    async def _events(
        self,
        asked: SamplingRequest,
        form: ReplyFormat,
        play: asyncio.Future[Answer],
        events: Events,
        event: dict[str, Any] | None,
    ) -> AsyncIterator[bytes]:
        """Yield the server-sent events of a reply. The end of the connection stops the models."""
        try:
            yield encode_event(form.chunk({"role": "assistant", "content": ""}))
            while event is not None:
                if event["event"] == "text":
                    yield encode_event(form.chunk({"content": event["text"]}))
                elif asked.marl_ray.parts:
                    yield encode_event(form.without_choice(marl_ray=event))
                event = await events.get()
            try:
                answer = await play
            except ApiError as error:
                yield encode_event(error.body())
                return
            if answer.turns:  # the team's program is known at its last turn only
                yield encode_event(form.chunk({"content": answer.text}))
            yield encode_event(form.chunk({}, answer.finish_reason))
            if asked.stream_options is not None and asked.stream_options.include_usage:
                yield encode_event(form.without_choice(usage=answer.usage.to_dict()))
            yield encode_event("[DONE]")
        finally:
            play.cancel()
            await asyncio.gather(play, return_exceptions=True)


Ask = Callable[[OnEvent | None], Coroutine[Any, Any, Answer]]
"""Answers a request and reports its events to a listener, if there is one."""


def _reply(form: ReplyFormat, answers: Sequence[Answer], with_parts: bool) -> dict[str, Any]:
    """Return a complete reply."""
    usage = Usage()
    choices = []
    turns = []
    for answer in answers:
        usage.prompt_tokens += answer.usage.prompt_tokens
        usage.completion_tokens += answer.usage.completion_tokens
        choices.append(({"content": answer.text}, answer.finish_reason))
        turns += answer.turns
    body = form.reply(choices, usage)
    if with_parts:
        body["marl_ray"] = {"turns": turns}
    return body


def _only_user_message(asked: ChatRequest) -> str:
    """Return the text of the only user message: the team's prompts are built around one task. Raises ApiError."""
    users = [message for message in asked.messages if message.role == "user"]
    if len(users) != 1 or any(message.role == "assistant" for message in asked.messages):
        raise ApiError(400, "the model team answers one user message, the task", "invalid_value", "messages")
    return task_text(users[0].text)


async def _first_of(events: Events, play: asyncio.Future[Answer]) -> dict[str, Any] | None:
    """Return the first event, or raise the error of an answer that failed before it."""
    event = await events.get()
    if event is None:
        await play
    return event
