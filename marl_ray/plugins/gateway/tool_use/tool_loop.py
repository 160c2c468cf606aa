"""The loop of an answer with tools: ask, execute the calls, ask again."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.core.chat import Prompt, as_messages, prepend
from marl_ray.core.concurrency import gather
from marl_ray.environments.base import Environment
from marl_ray.http.request_formats import ApiError
from marl_ray.plugins.gateway.program_episode import CallAnswer, ProgramEpisode
from marl_ray.plugins.gateway.program_result import ProgramFailed
from marl_ray.plugins.gateway.programs import EpisodeProgram
from marl_ray.plugins.gateway.tool_calls import CallFormat, ToolCall
from marl_ray.plugins.gateway.tool_use.tools import Tool, ToolContext, ToolFailed, read_arguments

DESCRIPTION = """\
You may call these functions before you answer, one JSON description per line:
{functions}
To call one, write nothing but
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>
and read its result. Your last message is your answer.

"""
"""Opening of a prompt for models whose chat template renders no tools. The call's format is that of Hermes and Qwen."""


@dataclass(slots=True)
class Answering:
    """The state of one agent's answer: its messages, and counts."""

    messages: list[Mapping[str, Any]]
    calls: int = 0
    failed: int = 0
    observed: int = 0
    """Number of tokens of results, with the template's tokens around them."""
    seen: int = 0
    """Number of tokens up to the end of the last message of the agent."""


class ToolLoop(EpisodeProgram):
    """The program of an episode: all agents answer the environment's prompts at the same time, each
    with its tools. The result has the last answer of each agent, for the environment's reward."""

    def __init__(
        self,
        environment: Environment[Any],
        tools: Mapping[str, Tool],
        agents: Collection[int],
        call_formats: Sequence[CallFormat | None],
        max_tool_calls: int,
        max_result_chars: int,
    ) -> None:
        self._environment = environment
        self._tools = tools
        self._agents = agents
        self._call_formats = call_formats
        """Format of each agent's calls, None if its chat template renders no tools."""
        self._max_tool_calls = max_tool_calls
        self._max_result_chars = max_result_chars
        self._schemas = [tool.schema for tool in tools.values()]

    async def play(self, episode: ProgramEpisode) -> dict[str, Any]:
        prompts = self._environment.first_prompts(episode.task)
        answering = [self._answer(episode, agent, prompt) for agent, prompt in enumerate(prompts)]
        found = await gather(*answering)
        answers = {}
        calls = 0
        failed = 0
        observed = 0
        for access, (text, state) in zip(episode.agents, found, strict=True):
            answers[access.name] = text
            calls += state.calls
            failed += state.failed
            observed += state.observed
        # Agents without tools make no calls, so they would only dilute the means.
        count = max(1, len(self._agents))
        metrics = {
            "tool_calls": calls / count,
            "tool_failures": failed / count,
            "observation_tokens": observed / count,
        }
        return {"answers": answers, "metrics": metrics}

    async def _answer(self, episode: ProgramEpisode, agent: int, prompt: Prompt) -> tuple[str, Answering]:
        """Return an agent's last message, after its tool calls. Raises ProgramFailed if the prompt is too long."""
        call_format = self._call_formats[agent]
        schemas = self._schemas if agent in self._agents else []
        if schemas and call_format is None:
            functions = "\n".join(map(json.dumps, schemas))
            prompt = prepend(DESCRIPTION.format(functions=functions), prompt)
        state = Answering(list(as_messages(prompt)))
        text = None
        while True:
            try:
                (answer,) = await episode.chat(agent, state.messages, schemas)
            except ApiError as error:  # the context or the number of calls is exhausted
                if text is None:
                    raise ProgramFailed(error.message) from None
                return text, state
            if state.seen:
                # All tokens between two messages of the agent are results and the template's marks around them.
                state.observed += answer.prompt_tokens - state.seen
            state.seen = answer.prompt_tokens + answer.tokens
            text = answer.text
            if not answer.tool_calls or state.calls + len(answer.tool_calls) > self._max_tool_calls:
                return text, state
            context = ToolContext(episode.task, agent)
            results = []
            for call in answer.tool_calls:  # in their order: a later call may rely on an earlier one
                results.append(await self._call(call, context, state))
            state.messages += _exchange(answer, results, call_format)

    async def _call(self, call: ToolCall, context: ToolContext, state: Answering) -> str:
        """Return the result of a call, or the reason why there is none."""
        state.calls += 1
        try:
            if call.name not in self._tools:
                raise ToolFailed(f"there is no tool {call.name[:100]!r}: there are {', '.join(self._tools)}")
            result = await self._tools[call.name].call(read_arguments(call.arguments), context)
        except ToolFailed as error:
            state.failed += 1
            result = f"error: {error}"
        return shorten(result, self._max_result_chars)


def _exchange(answer: CallAnswer, results: Sequence[str], call_format: CallFormat | None) -> list[Mapping[str, Any]]:
    """Return the messages that follow an answer with calls: the answer, which the episode restores as it was sampled,
    and the results."""
    calls = [call.data() for call in answer.tool_calls]
    said: Mapping[str, Any] = {"role": "assistant", "content": answer.text, "tool_calls": calls}
    if call_format is not None:
        messages = [said]
        for call, text in zip(answer.tool_calls, results, strict=True):
            message = {"role": "tool", "name": call.name, "content": text}
            if call_format == "listed":
                # Templates of Mistral need ids, which depend on the answer alone. Other ids are random, and a template
                # that rendered them would make the prompt random.
                message["tool_call_id"] = call.id
            messages.append(message)
        return messages
    told = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in results)
    return [said, {"role": "user", "content": told}]


def shorten(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, plus a mark in place of its middle if it is longer.

    Example:
        >>> shorten("abcdefgh", 4)
        'ab\\n... 4 characters left out ...\\ngh'
    """
    if len(text) <= limit:
        return text
    begin = text[: (limit + 1) // 2]
    end = text[len(text) - limit // 2 :]
    return f"{begin}\n... {len(text) - limit} characters left out ...\n{end}"
