"""Agents' settings in served answers: system prompts, stop texts, variables of the template, and conversations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.plugins.serve.canned_team import AUX, CannedStreams, canned_team

SETTINGS = {
    "model.system_prompt": "Be brief.",
    "model.stop": ["return"],
    "model.chat_template_kwargs": {"enable_thinking": False},
    "magrpo.min_new_tokens": 2,
    "external.composition": "chat",
}
TASK = 'def double(n: int) -> int:\n    """Return 2 times n."""\n'
CUT_AUX = AUX.partition("return")[0]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, CannedStreams, Any]]:
    with canned_team(settings=SETTINGS) as server:
        yield server


@pytest.fixture
def streams(served: tuple[str, CannedStreams, Any]) -> CannedStreams:
    served[1].calls.clear()
    return served[1]


@pytest.fixture
def client(served: tuple[str, CannedStreams, Any]) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served[0]}/v1", api_key="none", max_retries=0, timeout=100)


def test_an_agent_answers_messages_with_its_own_settings(client: openai.OpenAI, streams: CannedStreams) -> None:
    user: Any = {"role": "user", "content": "x"}
    reply = client.chat.completions.create(model="agent_0", messages=[user])
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (CUT_AUX, "stop")
    ((prompt, _, sampling),) = streams.calls
    assert prompt == [{"role": "system", "content": "Be brief."}, user]
    assert (sampling.stop, sampling.min_new_tokens) == (("return",), 2)
    assert sampling.template_kwargs == {"enable_thinking": False}


def test_the_system_message_and_stop_texts_of_a_client(client: openai.OpenAI, streams: CannedStreams) -> None:
    messages: Any = [{"role": "system", "content": "Sing."}, {"role": "user", "content": "x"}]
    reply = client.chat.completions.create(model="agent_0", messages=messages, stop="aux", max_tokens=1)
    assert reply.choices[0].message.content == "def "
    ((prompt, _, sampling),) = streams.calls
    assert prompt == messages
    assert (sampling.stop, sampling.max_new_tokens, sampling.min_new_tokens) == (("return", "aux"), 1, 1)


def test_a_text_completion_has_no_system_prompt(client: openai.OpenAI, streams: CannedStreams) -> None:
    client.completions.create(model="agent_0", prompt="x")
    assert streams.calls[0][0] == "x"


def test_the_turns_of_a_team_are_one_conversation(client: openai.OpenAI, streams: CannedStreams) -> None:
    extra = {"marl_ray": {"tests": ["assert double(2) == 4"], "parts": True}}
    messages: Any = [{"role": "user", "content": TASK}]
    reply = client.chat.completions.create(model="team", messages=messages, extra_body=extra)
    first, second = reply.model_extra["marl_ray"]["turns"]
    assert [agent["text"] for agent in first["agents"]] == [CUT_AUX, "def double(n):\n    "]
    assert TASK not in second["agents"][0]["prompt"]
    initial, later = streams.calls[:2], streams.calls[2:]
    for prompt, history, sampling in initial:
        assert (prompt[0], history) == ({"role": "system", "content": "Be brief."}, ())
        assert sampling.stop == ("return",)
    for prompt, history, sampling in later:
        assert isinstance(prompt, str), "the conversation has the system prompt"
        assert len(history) > len(TASK)
        assert sampling.template_kwargs == {"enable_thinking": False}
