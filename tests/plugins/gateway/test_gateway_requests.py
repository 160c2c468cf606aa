"""Requests over HTTP by the clients of OpenAI and Anthropic: answers, streams, tools, and refusals."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import APIStatusError, AsyncOpenAI, AuthenticationError, NotFoundError, PermissionDeniedError

from marl_ray.core.episode import Task
from marl_ray.environments import ENVIRONMENTS
from marl_ray.plugins.gateway.program_episode import ProgramEpisode
from marl_ray.toy import BASE_PATH
from tests.plugins.gateway.scripted_agents import ScriptedAgent, chat_model, gateway_config
from tests.rollout.helpers import NoExecutor

TOOL = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1,  "b": 2}}\n</tool_call>'
USER = [{"role": "user", "content": "Hello"}]
Use = Callable[[ProgramEpisode, AsyncOpenAI, list[ScriptedAgent]], Coroutine[Any, Any, None]]


@asynccontextmanager
async def serving(model: str, answer: str = "yes", **gateway: Any) -> AsyncIterator[tuple[ProgramEpisode, list[Any]]]:
    """Serve one episode, in which both agents give the same answer."""
    config = gateway_config(model, function="tests.plugins.gateway.test_exact_ids:converses", **gateway)
    agents = [ScriptedAgent(model, lambda *_: answer) for _ in range(2)]
    environment = ENVIRONMENTS.get("gateway").from_config(config)
    runner = environment.player(config, agents, NoExecutor())
    server = await environment.server()
    limits = config.gateway.max_calls
    episode = ProgramEpisode(
        Task("t", "p", {}), runner._agents(False), (1, ("train", 0)), limits, base_url=server.base_url
    )
    try:
        with server.serving(episode):
            yield episode, agents
    finally:
        await environment.close()


def client_of(episode: ProgramEpisode, **settings: Any) -> AsyncOpenAI:
    return AsyncOpenAI(**{"base_url": episode.base_url, "api_key": episode.token, "max_retries": 0} | settings)


def run(use: Use, model: str = str(BASE_PATH), answer: str = "yes", **gateway: Any) -> None:
    async def play() -> None:
        async with serving(model, answer, **gateway) as (episode, agents), client_of(episode) as client:
            await use(episode, client, agents)

    asyncio.run(play())


def test_an_answer_has_the_text_and_the_numbers_of_tokens() -> None:
    async def use(episode: ProgramEpisode, client: AsyncOpenAI, agents: list[ScriptedAgent]) -> None:
        reply = await client.chat.completions.create(model="coder", messages=USER, temperature=0.1, max_tokens=3)
        assert reply.choices[0].message.content == "yes"
        assert reply.choices[0].finish_reason == "length"
        assert reply.usage is not None
        assert (reply.usage.completion_tokens, reply.usage.total_tokens) == (3, 3 + reply.usage.prompt_tokens)
        _, sampling = agents[0].requests[0]
        assert (sampling.temperature, sampling.max_new_tokens) == (0.8, 3)  # the temperature is the run's
        assert [model.id async for model in client.models.list()] == ["coder", "tester"]
        text = await client.completions.create(model="tester", prompt="Hello", n=2)
        assert [choice.text for choice in text.choices] == ["yes", "yes"]
        assert [call.agent for call in episode.calls] == [0, 1, 1]

    run(use)


def test_a_stream_has_the_same_answer() -> None:
    async def use(episode: ProgramEpisode, client: AsyncOpenAI, agents: list[ScriptedAgent]) -> None:
        options: Any = {"stream": True, "stream_options": {"include_usage": True}}
        parts = [part async for part in await client.chat.completions.create(model="coder", messages=USER, **options)]
        assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == "yes"
        assert [p.choices[0].finish_reason for p in parts if p.choices][-1] == "stop"
        assert parts[-1].usage.completion_tokens == 4
        assert len(episode.calls) == 1

    run(use)


def test_parts_of_a_stream_arrive_while_the_answer_is_sampled() -> None:
    async def use(episode: ProgramEpisode, client: AsyncOpenAI, agents: list[ScriptedAgent]) -> None:
        agents[0].proceed.clear()
        stream = await client.chat.completions.create(model="coder", messages=USER, stream=True)
        parts = []
        async for part in stream:
            parts.append(part.choices[0].delta.content or "")
            if parts == ["", "so"]:
                assert episode.calls == []
                agents[0].proceed.set()
        assert "".join(parts) == "some text"
        assert len(episode.calls) == 1

    run(use, answer="some text")


@pytest.mark.parametrize("endpoint", ["chat", "messages"])
def test_a_call_whose_first_part_was_read_is_kept_whole(endpoint: str) -> None:
    async def use(episode: ProgramEpisode, client: AsyncOpenAI, agents: list[ScriptedAgent]) -> None:
        agents[0].proceed.clear()
        if endpoint == "chat":
            stream = await client.chat.completions.create(model="coder", messages=USER, stream=True)
            await anext(aiter(stream))
            await stream.close()
        else:
            address = episode.base_url.removesuffix("/v1")
            async with AsyncAnthropic(base_url=address, api_key=episode.token, max_retries=0) as other:
                opened = await other.messages.create(model="coder", messages=USER, max_tokens=96, stream=True)
                await anext(aiter(opened))
                await opened.close()
        assert episode.calls == []
        agents[0].proceed.set()
        await episode.finish()
        assert [call.completion.text for call in episode.calls] == ["some text"]
        assert [call.completion.token_ids for call in episode.calls] == agents[0].sampled

    run(use, answer="some text")


def test_a_stream_of_several_choices_has_all_of_them() -> None:
    async def use(episode: ProgramEpisode, client: AsyncOpenAI, agents: list[ScriptedAgent]) -> None:
        texts = ["", "", ""]
        async for part in await client.chat.completions.create(model="coder", messages=USER, stream=True, n=3):
            texts[part.choices[0].index] += part.choices[0].delta.content or ""
        assert texts == ["yes"] * 3
        assert len(episode.calls) == 3

    run(use)


def test_a_stream_with_an_error_before_its_first_part_has_a_status() -> None:
    async def use(episode: ProgramEpisode, client: AsyncOpenAI, agents: list[ScriptedAgent]) -> None:
        messages: Any = [{"role": "user", "content": "word " * 2000}]
        with pytest.raises(APIStatusError, match="context"):
            await client.chat.completions.create(model="coder", messages=messages, stream=True)

    run(use)


def test_no_part_of_a_tool_call_is_streamed_as_text(tmp_path: Path) -> None:
    async def use(episode: ProgramEpisode, client: AsyncOpenAI, agents: list[ScriptedAgent]) -> None:
        ask: Any = {"model": "coder", "messages": USER, "tools": [TOOL], "stream": True}
        text, calls = "", []
        async for part in await client.chat.completions.create(**ask):
            text += part.choices[0].delta.content or ""
            calls += part.choices[0].delta.tool_calls or []
        assert text == "I add <2> numbers."
        assert [(call.index, call.function.name) for call in calls] == [(0, "add")]

    run(use, chat_model(tmp_path), "I add <2> numbers.\n" + CALL)


def test_stop_texts_and_choices_reach_the_engine() -> None:
    async def use(episode: ProgramEpisode, client: AsyncOpenAI, agents: list[ScriptedAgent]) -> None:
        reply = await client.chat.completions.create(model="coder", messages=USER, stop=["\n\n"], n=3)
        assert len(reply.choices) == 3
        assert (agents[0].requests[0][1].stop, agents[0].requests[0][1].num_generations) == (("\n\n",), 3)
        assert len(episode.calls) == 3

    run(use)


def test_a_tool_call_continues_with_the_ids_that_were_sampled(tmp_path: Path) -> None:
    # The client sends the arguments back with other spaces; the conversation keeps the sampled ids.
    async def use(episode: ProgramEpisode, client: AsyncOpenAI, agents: list[ScriptedAgent]) -> None:
        ask = client.chat.completions.create
        reply = await ask(model="coder", messages=USER, tools=[TOOL])
        message = reply.choices[0].message
        assert reply.choices[0].finish_reason == "tool_calls"
        (call,) = message.tool_calls or ()
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1, "b": 2})
        result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
        await ask(model="coder", messages=[*USER, message.model_dump(exclude_none=True), result], tools=[TOOL])
        first, second = episode.calls
        history = first.prompt_ids + first.completion.token_ids
        assert second.prompt_ids[: len(history)] == history
        assert episode.rewritten == 0
        assert "tools 1" in agents[0].tokenizer.decode(first.prompt_ids)

    run(use, chat_model(tmp_path), CALL)


def test_the_client_of_anthropic_works_too(tmp_path: Path) -> None:
    async def use(episode: ProgramEpisode, client: AsyncOpenAI, agents: list[ScriptedAgent]) -> None:
        address = episode.base_url.removesuffix("/v1")
        async with AsyncAnthropic(base_url=address, api_key=episode.token, max_retries=0) as other:
            tool: Any = {"name": "add", "input_schema": {"type": "object"}}
            ask: Any = {"model": "tester", "max_tokens": 96, "system": "Be brief.", "tools": [tool]}
            reply = await other.messages.create(messages=USER, **ask)
            assert reply.stop_reason == "tool_use"
            (use_block,) = reply.content
            assert use_block.input == {"a": 1, "b": 2}
            result = {"type": "tool_result", "tool_use_id": use_block.id, "content": "3"}
            messages: Any = [*USER, {"role": "assistant", "content": reply.content}]
            messages.append({"role": "user", "content": [result]})
            async with other.messages.stream(messages=messages, **ask) as stream:
                final = await stream.get_final_message()
            assert final.stop_reason == "tool_use"
            first, second = episode.calls
            history = first.prompt_ids + first.completion.token_ids
            assert second.prompt_ids[: len(history)] == history

    run(use, chat_model(tmp_path), CALL)


def test_only_the_token_of_a_running_episode_is_accepted() -> None:
    async def use(episode: ProgramEpisode, client: AsyncOpenAI, agents: list[ScriptedAgent]) -> None:
        for token in ("none", "x", episode.token[:-1], episode.token + "x", secrets.token_urlsafe(24)):
            async with client_of(episode, api_key=token) as other:
                with pytest.raises(AuthenticationError):
                    await other.chat.completions.create(model="coder", messages=USER)
        with pytest.raises(NotFoundError, match="there are coder, tester"):
            await client.chat.completions.create(model="agent_0", messages=USER)
        assert episode.calls == []

    run(use)


def test_a_prompt_far_beyond_the_context_is_refused_without_encoding_all_of_it() -> None:
    async def use(episode: ProgramEpisode, client: AsyncOpenAI, agents: list[ScriptedAgent]) -> None:
        renderer: Any = episode.agents[0].renderer
        encode, lengths = renderer._tokenizer, []

        def measured(text: str, **settings: Any) -> Any:
            lengths.append(len(text))
            return encode(text, **settings)

        renderer._tokenizer = measured
        with pytest.raises(APIStatusError) as refused:
            await client.completions.create(model="coder", prompt="def f(x): return x " * 50_000)
        assert (refused.value.status_code, refused.value.code) == (400, "context_length_exceeded")
        assert lengths == [8 * 1024]
        assert agents[0].requests == []

    run(use)


def test_calls_beyond_the_limit_are_refused() -> None:
    async def use(episode: ProgramEpisode, client: AsyncOpenAI, agents: list[ScriptedAgent]) -> None:
        for _ in range(2):
            await client.chat.completions.create(model="coder", messages=USER)
        with pytest.raises(PermissionDeniedError, match="max_calls"):
            await client.chat.completions.create(model="coder", messages=USER)

    run(use, max_calls=2)


def json_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def test_a_response_format_constrains_the_sampler() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    formats: list[Any] = [{"type": "text"}, {"type": "json_object"}, json_format(schema)]

    async def use(episode: ProgramEpisode, client: AsyncOpenAI, agents: list[ScriptedAgent]) -> None:
        for one in formats:
            await client.chat.completions.create(model="coder", messages=USER, response_format=one)
        asked = [sampling.json_schema for _, sampling in agents[0].requests]
        assert asked[0] == ""
        assert list(map(json.loads, asked[1:])) == [{"type": "object"}, schema]

    run(use)


REFUSED: list[tuple[int, Any]] = [
    (400, {"model": "coder"}),
    (400, {"model": "coder", "messages": []}),
    (400, {"model": "coder", "messages": "text"}),
    (400, {"model": "coder", "messages": [{"role": "king", "content": "x"}]}),
    (400, {"model": "coder", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}),
    (400, {"model": "coder", "messages": USER, "n": 17}),
    (400, {"model": "coder", "messages": USER, "n": -1}),
    (400, {"model": "coder", "messages": USER, "max_tokens": 0}),
    (400, {"model": "coder", "messages": USER, "temperature": 5}),
    (400, {"model": "coder", "messages": USER, "stop": ["x"] * 99}),
    (400, {"model": "coder", "messages": USER, "logprobs": True}),
    (400, {"model": "coder", "messages": USER, "logit_bias": {"1": 5}}),
    (400, {"model": "coder", "messages": USER, "response_format": {"type": "xml"}}),
    (400, {"model": "coder", "messages": USER, "response_format": {"type": "json_schema"}}),
    (400, {"model": "coder", "messages": USER, "response_format": json_format({"type": "nonsense"})}),
    (400, {"model": "coder", "messages": USER, "response_format": json_format({"type": "array", "contains": {}})}),
    (400, {"model": "coder", "messages": USER, "response_format": {"type": "json_object"}, "tools": [TOOL]}),
    (400, {"model": "coder", "messages": USER, "tools": [TOOL], "tool_choice": "required"}),
    (400, {"model": "coder", "messages": USER, "tools": [{"type": "function"}]}),
    (400, {"model": ["coder"], "messages": USER}),
    (404, {"model": "../coder", "messages": USER}),
    (404, {"model": "coder\x00", "messages": USER}),
    (400, {"model": "coder", "messages": [{"role": "user", "content": "word " * 2000}]}),  # beyond the context
    (400, [1]),
    (400, None),
]


def test_malformed_requests_are_refused() -> None:
    async def use(episode: ProgramEpisode, client: AsyncOpenAI, agents: list[ScriptedAgent]) -> None:
        for status, body in REFUSED:
            with pytest.raises(APIStatusError) as refused:
                await client.post("/chat/completions", body=body, cast_to=object)
            assert refused.value.status_code == status, (body, refused.value)
        assert episode.calls == []
        assert (await client.chat.completions.create(model="coder", messages=USER)).choices[0].message.content == "yes"

    run(use)


def test_a_hundred_concurrent_calls_of_an_episode() -> None:
    async def use(episode: ProgramEpisode, client: AsyncOpenAI, agents: list[ScriptedAgent]) -> None:
        ask = client.chat.completions.create
        messages = [[{"role": "user", "content": f"number {number % 50}"}] for number in range(100)]
        await asyncio.gather(*(ask(model="coder", messages=one) for one in messages))
        assert len(episode.calls) == 100
        assert len({sampling.seed for _, sampling in agents[0].requests}) == 100

    started = time.monotonic()
    run(use)
    assert time.monotonic() - started < 300
