"""Scaling the generators of a running run on request."""

from __future__ import annotations

import asyncio
import logging

from marl_ray.actors.handle import ActorFailed
from marl_ray.actors.run_actors import RunActors
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize
from marl_ray.storage.scale_requests import POLL_INTERVAL_S, ScaleReply, ScaleRequest, ScaleRequests, validate_request

logger = logging.getLogger(__name__)


async def serve_requests(requests: ScaleRequests, actors: RunActors) -> None:
    """Serve requests one after another until cancelled. Requests that are open then are refused."""
    pending: list[tuple[str, ScaleRequest | UserError]] = []
    try:
        while True:
            pending += await asyncio.to_thread(requests.take)
            while pending:
                id, request = pending[0]
                answer = await _answer(request, actors)
                logger.info(answer.text if answer.done else f"not scaled: {answer.text}")
                pending.pop(0)
                await asyncio.to_thread(_settle, requests, id, answer)
            await asyncio.sleep(POLL_INTERVAL_S)
    finally:
        for id, _ in pending + requests.take():
            _settle(requests, id, ScaleReply(False, "the run is ending"))


async def _answer(request: ScaleRequest | UserError, actors: RunActors) -> ScaleReply:
    try:
        if isinstance(request, UserError):
            raise request
        return ScaleReply(True, await _scale(request, actors))
    except (UserError, ActorFailed) as error:
        return ScaleReply(False, str(error))


async def _scale(request: ScaleRequest, actors: RunActors) -> str:
    """Scale the generators and return the result as text. Raises UserError and the errors of starting an actor."""
    agent, replicas = request.agent, request.replicas
    validate_request(agent, replicas, len(actors.generators))
    group = actors.generators[agent]
    before = group.size
    await group.resize(replicas)
    policy = actors.learner_of(agent).policy
    return f"{policy} now has {pluralize(replicas, 'generator')} ({before} before), until this run ends or is resumed"


def _settle(requests: ScaleRequests, id: str, answer: ScaleReply) -> None:
    try:
        requests.settle(id, answer)
    except OSError as error:
        logger.warning(f"the answer to a request cannot be written ({error})")
