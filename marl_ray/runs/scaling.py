"""More or fewer generators while a run goes on, as people ask for them."""

from __future__ import annotations

import asyncio

from marl_ray.actors.handle import ActorFailed
from marl_ray.actors.team import Team
from marl_ray.core.errors import UserError
from marl_ray.core.words import counted
from marl_ray.runs.requests import LOOK_EVERY_S, Reply, Requests, Scale, checked
from marl_ray.telemetry.console import say, warn


async def serve_requests(requests: Requests, team: Team) -> None:
    """Do what is asked, one request after another, for as long as this is awaited. What comes after a cancellation, or
    is not done by then, is refused."""
    asked: list[tuple[str, Scale | UserError]] = []
    try:
        while True:
            asked += await asyncio.to_thread(requests.take)
            while asked:
                id, request = asked[0]
                answer = await _answer(request, team)
                say(answer.text if answer.done else f"not scaled: {answer.text}")
                asked.pop(0)
                await asyncio.to_thread(_settle, requests, id, answer)
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        for id, _ in asked + requests.take():
            _settle(requests, id, Reply(False, "the run is at its end"))


async def _answer(request: Scale | UserError, team: Team) -> Reply:
    try:
        if isinstance(request, UserError):
            raise request
        return Reply(True, await _scale(request, team))
    except (UserError, ActorFailed) as error:
        return Reply(False, str(error))


async def _scale(request: Scale, team: Team) -> str:
    """Do it; returns what there is now. Raises UserError, and what starting an actor raises."""
    agent, replicas = request.agent, request.replicas
    checked(agent, replicas, len(team.generators))
    group = team.generators[agent]
    before = group.size
    await group.resize(replicas)
    policy = team.learner_of(agent).policy
    return f"{policy} has {counted(replicas, 'generator')} now ({before} before), until this run ends or is resumed"


def _settle(requests: Requests, id: str, answer: Reply) -> None:
    try:
        requests.settle(id, answer)
    except OSError as error:
        warn(f"nobody hears the answer to a request ({error})")
