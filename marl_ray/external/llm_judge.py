"""Another model as a judge: it is asked a question about an answer and gives a score, for environments whose rewards no
program can tell.

It is asked at an endpoint compatible with OpenAI's, by the process that plays the episodes. Its key never is in a
sandbox's guest, whose environment is empty, nor in a config or a record. Every request costs, so one is made again only
if the server's answer says that it may help (429, a 5xx), after as long as it asks for; a time-out or a reply without a
score is not, and gives no verdict. What a joint action's requests cost is counted with its outcome.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marl_ray.config import JudgeConfig
from marl_ray.core.concurrency import gather
from marl_ray.core.errors import UserError
from marl_ray.external.client import Client, EndpointError, first_object, pause_s
from marl_ray.external.endpoints import OPENAI, Endpoint, is_http

MOST = 10
"""Scores go from 0 to this."""
FORM = f'Reply with one JSON object and nothing else: {{"score": a number from 0 to {MOST}}}'


@dataclass(frozen=True, slots=True)
class Question:
    """What a judge is asked: an attempt's `program`, in an environment that has a judge."""

    text: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """A score from 0 to 1 and what it cost. `failure` says why there is none."""

    score: float = 0.0
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failure: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """For `Outcome.counts`."""
        return {
            "judge/requests": self.requests,
            "judge/prompt_tokens": self.prompt_tokens,
            "judge/completion_tokens": self.completion_tokens,
        }


class LLMJudge:
    """Asks one model, from one event loop. Raises UserError for settings that name none, or whose key is not set."""

    def __init__(self, config: JudgeConfig, environment: Mapping[str, str] = os.environ) -> None:
        self._retries = config.retries
        self._client = Client(_endpoint(config, environment), config.timeout_s)

    def __str__(self) -> str:
        return str(self._client)

    async def judge(self, questions: Sequence[Question]) -> list[Judgement]:
        """One judgement a question, in their order."""
        return await gather(*map(self._one, questions))

    async def _one(self, question: Question) -> Judgement:
        """Raises UserError when the key is refused, since no later request can do better."""
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
    """From 0 to 1; None where the reply has none. One that is out of range is none, and not the best."""
    try:
        score = first_object(text, ["score"])["score"]
    except EndpointError:
        return None
    return score / MOST if type(score) in (int, float) and 0 <= score <= MOST else None


def _endpoint(config: JudgeConfig, environment: Mapping[str, str]) -> Endpoint:
    model, address, variable = (config.model or "").strip(), (config.base_url or "").strip(), config.key_variable
    if not model:
        raise UserError("this environment asks a judge: set judge.model, the model that gives the scores")
    if address and not is_http(address):
        raise UserError("judge.base_url is not an address like http://localhost:8000/v1")
    if not environment.get(variable, "").strip():
        local = " (any word, if the server asks for none)" if address else ""
        raise UserError(f"judge.model {model!r} needs a key: set the environment variable {variable}{local}")
    return Endpoint(OPENAI, model, address or OPENAI.address, variable)
