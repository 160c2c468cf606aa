"""A judge model, which scores answers for environments whose rewards no program can compute.

The API key appears in no config, no record and no sandbox guest, whose environment is empty. Because requests cost
money, a request is retried only if the server's reply says that a retry may help (429, 5xx), after the wait that the
server requests. A timeout or a reply without a score gives no verdict. The outcome of a joint action counts the cost.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from marl_ray.config import JudgeConfig
from marl_ray.core.concurrency import gather
from marl_ray.core.errors import UserError
from marl_ray.external.client import Client, EndpointError, ModelReply, last_object
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
        endpoint = _endpoint(config, variables)
        self._client = Client(endpoint, config.timeout_s, config.retries, "judge", repeat_lost=False)

    def __str__(self) -> str:
        return str(self._client.endpoint)

    async def judge(self, questions: Sequence[Question]) -> list[Judgement]:
        """Return one judgement per question."""
        return await gather(*map(self._judge, questions))

    async def _judge(self, question: Question) -> Judgement:
        """Return the judgement of one question. Raises UserError if the key is refused."""
        try:
            judgement, requests = await self._client.ask(f"{question.text.strip()}\n\n{FORM}", _read)
        except EndpointError as error:
            return Judgement(requests=error.requests, failure=f"judge {self}: {error}")
        return replace(judgement, requests=requests)


def _read(reply: ModelReply) -> Judgement:
    """Return the judgement in a reply. A reply without a score from 0 to MAX_SCORE has been paid for, too."""
    paid = Judgement(0.0, 1, reply.prompt_tokens, reply.completion_tokens, "reply without a score")
    try:
        score = last_object(reply.text, ["score"])["score"]
    except EndpointError:
        return paid
    # `true` is an int for Python, and NaN fails the comparison.
    if type(score) not in (int, float) or not 0 <= score <= MAX_SCORE:
        return paid
    return replace(paid, score=score / MAX_SCORE, failure="")


def _endpoint(config: JudgeConfig, variables: Mapping[str, str]) -> Endpoint:
    model = (config.model or "").strip()
    address = (config.base_url or "").strip()
    variable = config.key_variable
    if not model:
        raise UserError("this environment asks a judge: set judge.model, the model that gives the scores")
    if address and not is_http(address):
        raise UserError("judge.base_url is not an address like http://localhost:8000/v1")
    if not variables.get(variable, "").strip():
        local = " (any word, if the server asks for none)" if address else ""
        raise UserError(f"judge.model {model!r} needs a key: set the environment variable {variable}{local}")
    return Endpoint(OPENAI, model, address or OPENAI.address, variable)
