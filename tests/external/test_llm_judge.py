"""The judge model with a local HTTP server: scores, cost, retries and the API key."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from marl_ray.config import JudgeConfig, from_tree
from marl_ray.core.errors import UserError
from marl_ray.external import client
from marl_ray.external.llm_judge import Judgement, LLMJudge, Question
from marl_ray.sandbox import Program, Sandbox
from tests.external.fake_endpoint import Server, fails, says

KEY = "sk-of-the-judge"
USAGE = {"prompt_tokens": 30, "completion_tokens": 4, "total_tokens": 34}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    running = Server()
    monkeypatch.setenv("MY_JUDGE", KEY)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.01)
    yield running
    running.close()


def ask(server: Server, *texts: str, **settings: Any) -> list[Judgement]:
    given = {"model": "m", "base_url": f"{server.url}/v1", "key_variable": "MY_JUDGE", "timeout_s": 5.0} | settings
    return asyncio.run(LLMJudge(JudgeConfig(**given)).judge([Question(text) for text in texts or ("Is it good?",)]))


def test_a_score_and_its_cost(server: Server) -> None:
    server.script = [says('I think {"score": 7}.', usage=USAGE)]
    (found,) = ask(server)
    assert found == Judgement(0.7, 1, 30, 4)
    assert found.counts == {"judge/requests": 1, "judge/prompt_tokens": 30, "judge/completion_tokens": 4}
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body["messages"][0]["content"].startswith("Is it good?\n\nReply with one JSON object")


@pytest.mark.parametrize(
    "reply",
    [
        'The answer says {"score": 10}, but it is wrong: {"score": 2}',
        '```json\n{"score": 10}\n```\nis a quotation. ```json\n{"score": 2, "why": {"score": 10}}\n```',
        '{"quoted": [{"score": 10}]}\n{"verdict": {"score": 2}}',
    ],
)
def test_a_score_that_the_judge_quotes_does_not_count(server: Server, reply: str) -> None:
    server.script = [says(reply)]
    assert ask(server)[0].score == 0.2


def test_judgements_are_in_the_order_of_the_questions(server: Server) -> None:
    def first_word(handler: Any) -> None:
        says(f'{{"score": {handler.body["messages"][0]["content"].split()[0]}}}')(handler)

    server.script = [first_word]
    assert [one.score for one in ask(server, "1 a", "2 b", "3 c")] == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_requests_are_retried_if_the_server_allows_it(server: Server, status: int) -> None:
    server.script = [fails(status), fails(status), says('{"score": 10}', usage=USAGE)]
    assert ask(server) == [Judgement(1.0, 3, 30, 4)]


def test_retries_wait_as_long_as_the_server_requests(server: Server) -> None:
    server.script = [fails(429, **{"retry-after": "1"}), says('{"score": 10}')]
    started = time.monotonic()
    assert ask(server)[0].score == 1.0
    assert time.monotonic() - started >= 1.0


@pytest.mark.parametrize(
    ("trouble", "says_so"),
    [
        (fails(400), "HTTP 400"),
        (says("late", pause=0.5), "timed out"),
        (lambda handler: handler.connection.close(), "no connection"),
        (fails(200, b"<html>"), "reply not understood"),
        (fails(307, location="/elsewhere"), "HTTP 307"),
        (says("Very good."), "reply without a score"),
        (says('{"score": 11}'), "reply without a score"),
        (says('{"score": "10"}'), "reply without a score"),
        (says('{"score": NaN}'), "reply without a score"),
        (says('{"score": true}'), "reply without a score"),
    ],
)
def test_other_failures_are_not_retried_and_give_no_verdict(
    server: Server, trouble: Callable[[BaseHTTPRequestHandler], None], says_so: str
) -> None:
    server.script = [trouble]
    (found,) = ask(server, timeout_s=0.2 if says_so == "timed out" else 5.0)
    assert says_so in found.failure
    assert (found.score, found.requests) == (0.0, 1)
    assert len(server.requests) <= 1, "a request that timed out may never have arrived"


def test_after_the_retries_there_is_no_verdict_and_no_key_in_messages(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.script = [fails(503, KEY.encode())]
    with caplog.at_level(logging.DEBUG):
        (found,) = ask(server, retries=2)
    assert (found.requests, len(server.requests)) == (3, 3)
    assert found.failure.endswith("HTTP 503")
    assert KEY not in found.failure + caplog.text


def test_a_refused_key_ends_the_run_without_naming_it(server: Server) -> None:
    server.script = [fails(401)]
    with pytest.raises(UserError, match="refused the key in MY_JUDGE") as error:
        ask(server)
    assert KEY not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "says_so"),
    [
        ({}, "this environment asks a judge: set judge.model, the model that gives the scores"),
        ({"model": "m", "base_url": "localhost:8000"}, "judge.base_url is not an address like"),
        ({"model": "m"}, "judge.model 'm' needs a key: set the environment variable JUDGE_API_KEY"),
        ({"model": "m", "base_url": "http://localhost:1/v1"}, "JUDGE_API_KEY (any word, if the server asks for none)"),
    ],
)
def test_missing_settings_are_rejected_before_the_run(settings: dict[str, str], says_so: str) -> None:
    with pytest.raises(UserError) as missing:
        LLMJudge(JudgeConfig(**settings), {"OPENAI_API_KEY": "k"})
    assert says_so in str(missing.value)


def test_a_misspelt_setting_is_named() -> None:
    tree = {"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}, "judge": {"key_varable": "X"}}
    with pytest.raises(UserError, match=r"did you mean 'judge\.key_variable'"):
        from_tree(tree, "magrpo")


def test_guest_code_does_not_find_the_key(server: Server) -> None:
    """Check that guest code, unlike the requesting process, has no environment variables."""
    look = "import os\ndef f():\n    return [dict(os.environ), list(os.environb.values())]"
    with Sandbox() as sandbox:
        report = sandbox.run(Program(look, ("assert f() == [{}, []]", f"assert {KEY!r} in str(f())"), "f"))
    assert report.tests[1].status == "fail"
