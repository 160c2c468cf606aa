"""More or fewer generators while a run goes on, as people ask for them."""

from __future__ import annotations

import asyncio
import logging

from marl_ray.actors.handle import ActorFailed
from marl_ray.actors.run_actors import RunActors
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize
from marl_ray.storage.scale_requests import POLL_INTERVAL_S, ScaleReply, ScaleRequest, ScaleRequests, validate_request

logger = logging.getLogger(__name__)


async def serve_requests(requests: ScaleRequests, team: RunActors) -> None:
    """Do what is asked, one request after another, for as long as this is awaited. What comes after a cancellation, or
    is not done by then, is refused."""
    asked: list[tuple[str, ScaleRequest | UserError]] = []
    try:
        while True:
            asked += await asyncio.to_thread(requests.take)
            while asked:
                id, request = asked[0]
                answer = await _answer(request, team)
                logger.info(answer.text if answer.done else f"not scaled: {answer.text}")
                asked.pop(0)
                await asyncio.to_thread(_settle, requests, id, answer)
            await asyncio.sleep(POLL_INTERVAL_S)
    finally:
        for id, _ in asked + requests.take():
            _settle(requests, id, ScaleReply(False, "the run is at its end"))


async def _answer(request: ScaleRequest | UserError, team: RunActors) -> ScaleReply:
    try:
        if isinstance(request, UserError):
            raise request
        return ScaleReply(True, await _scale(request, team))
    except (UserError, ActorFailed) as error:
        return ScaleReply(False, str(error))


async def _scale(request: ScaleRequest, team: RunActors) -> str:
    """Do it; returns what there is now. Raises UserError, and what starting an actor raises."""
    agent, replicas = request.agent, request.replicas
    validate_request(agent, replicas, len(team.generators))
    group = team.generators[agent]
    before = group.size
    await group.resize(replicas)
    policy = team.learner_of(agent).policy
    return f"{policy} has {pluralize(replicas, 'generator')} now ({before} before), until this run ends or is resumed"


def _settle(requests: ScaleRequests, id: str, answer: ScaleReply) -> None:
    try:
        requests.settle(id, answer)
    except OSError as error:
        logger.warning(f"nobody hears the answer to a request ({error})")
