"""A judge model, which scores answers for environments whose rewards no program can compute.

The API key appears in no config, no record and no sandbox guest, whose environment is empty. Because requests cost
money, a request is retried only if the server's reply says that a retry may help (429, 5xx), after the wait that the
server requests. A timeout or a reply without a score gives no verdict. The outcome of a joint action counts the cost.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marl_ray.config import JudgeConfig
from marl_ray.core.concurrency import gather
from marl_ray.core.errors import UserError
from marl_ray.external.client import Client, EndpointError, last_object, pause_s
from marl_ray.external.endpoints import OPENAI, Endpoint, is_http

MAX_SCORE = 10
"""Maximum score; the minimum is 0."""
FORM = f'Reply with one JSON object and nothing else: {{"score": a number from 0 to {MAX_SCORE}}}'


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the judge: an attempt's `program` in an environment with a judge."""

    text: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """A score from 0 to 1 and its cost. `failure` is the reason for a missing score."""

    score: float = 0.0
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failure: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """The cost as `Outcome.counts`."""
        return {
            "judge/requests": self.requests,
            "judge/prompt_tokens": self.prompt_tokens,
            "judge/completion_tokens": self.completion_tokens,
        }


class LLMJudge:
    """A client of one judge model, for one event loop. Raises UserError if the model or its key is not set."""

    def __init__(self, config: JudgeConfig, variables: Mapping[str, str] = os.environ) -> None:
        self._retries = config.retries
        self._client = Client(_endpoint(config, variables), config.timeout_s)

    def __str__(self) -> str:
        return str(self._client.endpoint)

    async def judge(self, questions: Sequence[Question]) -> list[Judgement]:
        """Return one judgement per question."""
        return await gather(*map(self._one, questions))

    async def _one(self, question: Question) -> Judgement:
        """Return the judgement of one question. Raises UserError if the key is refused."""
        attempt = 0
        while True:
            try:
                reply = await self._client.ask(f"{question.text.strip()}\n\n{FORM}")
                cost = (attempt + 1, reply.prompt_tokens, reply.completion_tokens)
                score = _score(reply.text)
                return Judgement(0.0, *cost, "reply without a score") if score is None else Judgement(score, *cost)
            except EndpointError as error:
                if error.refused:
                    variable = self._client.endpoint.key_variable
                    raise UserError(f"the judge {self} refused the key in {variable} ({error})") from None
                if error.status is None or not error.retry or attempt == self._retries:
                    return Judgement(0.0, attempt + 1, failure=f"judge {self}: {error}")
                await asyncio.sleep(pause_s(attempt) if error.wait_s is None else error.wait_s)
            attempt += 1


def _score(text: str) -> float | None:
    """Return the score of a reply, from 0 to 1; None if it is missing or out of range."""
    try:
        score = last_object(text, ["score"])["score"]
    except EndpointError:
        return None
    return score / MAX_SCORE if type(score) in (int, float) and 0 <= score <= MAX_SCORE else None


def _endpoint(config: JudgeConfig, variables: Mapping[str, str]) -> Endpoint:
    model, address, variable = (config.model or "").strip(), (config.base_url or "").strip(), config.key_variable
    if not model:
        raise UserError("this environment asks a judge: set judge.model, the model that gives the scores")
    if address and not is_http(address):
        raise UserError("judge.base_url is not an address like http://localhost:8000/v1")
    if not variables.get(variable, "").strip():
        local = " (any word, if the server asks for none)" if address else ""
        raise UserError(f"judge.model {model!r} needs a key: set the environment variable {variable}{local}")
    return Endpoint(OPENAI, model, address or OPENAI.address, variable)
