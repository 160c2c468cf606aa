"""One run of a program: its calls of the agents, as they were sampled, and its reward."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from marl_ray.core.chat import Prompt, TokenPrompt
from marl_ray.core.episode import AgentCall, Completion, Generation, SamplingSpec, Task
from marl_ray.core.errors import UserError
from marl_ray.core.random_streams import stream_seed
from marl_ray.environments.reward import TaskRow
from marl_ray.http.request_formats import ApiError, unknown_model
from marl_ray.plugins.gateway.prompt_renderer import (
    PromptRenderer,
    RenderedRequest,
    SampledConversations,
    TemplateMessage,
)
from marl_ray.plugins.gateway.replays import SAMPLED, RequestKey, Script
from marl_ray.plugins.gateway.tool_calls import REASONING_BEGINS, CallFormat, ToolCall, parse_tool_calls


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Settings of a request that a run does not fix: the number of choices, stop texts, a limit of tokens, and a JSON
    schema as text ("": none)."""

    choices: int = 1
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    json_schema: str = ""


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """One choice of an answer: its text, without tool calls, and the tool calls."""

    text: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    tokens: int
    prompt_tokens: int


class TokenGenerator(Protocol):
    """One agent's generators, which read token ids as they are. `stream` gives the same completion as `generate`."""

    async def generate(self, prompt: TokenPrompt, sampling: SamplingSpec, priority: int = 0) -> Generation: ...

    async def stream(
        self, prompt: TokenPrompt, sampling: SamplingSpec, on_text: Callable[[str], None]
    ) -> Generation: ...


class CallListener(Protocol):
    """Receives the parts of a call's text while it is sampled."""

    def start(self, prompt_tokens: int, calls: CallFormat | None) -> None:
        """Begin. `calls` is the format of tool calls, and None if the call has no tools."""

    def add(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class AgentAccess:
    """What all episodes share about one agent: its model name in requests, its generators, sampling and prompts."""

    name: str
    generators: TokenGenerator
    sampling: SamplingSpec
    renderer: PromptRenderer


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call of an agent: its prompt as it was asked and as it is sampled, and its tools. `is_chat` False: a text."""

    agent: int
    prompt: Prompt
    rendered: RenderedRequest
    tools: Sequence[Any]
    is_chat: bool


@dataclass(slots=True)
class ProgramEpisode:
    """The calls of one episode. `key` names its random streams; `token` authorises the program's requests.

    The random numbers of a call are a function of the prompt's token ids and of the number of earlier calls with these
    ids, so that concurrent calls get the same answers in any order.
    """

    task: Task
    agents: Sequence[AgentAccess]
    key: tuple[int, tuple[str | int, ...]]
    """Seed and name of the random streams."""
    max_calls: int
    priority: int = 0
    task_data: Mapping[str, Any] = field(default_factory=dict)
    """The task as the program reads it."""
    base_url: str = ""
    """Address of the gateway, with /v1."""
    script: Script = SAMPLED
    """RecordedAnswers of a recorded run."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    answers: dict[RequestKey, tuple[Completion, ...]] = field(default_factory=dict)
    """All completions by request, in the order of their ends."""
    calls: list[AgentCall] = field(default_factory=list)
    requests: int = 0
    rewritten: int = 0
    """Number of requests whose earlier answers were rendered in another way."""
    posted: Any = None
    """Last reward that the program has posted."""
    reported: asyncio.Event = field(default_factory=asyncio.Event)
    """Set as soon as a reward was posted."""
    failure: str = ""
    """Reason why the episode fails whatever its reward is."""
    broken: UserError | None = None
    """Error of the generators, which ends the run and not only the episode."""
    _streamed: set[asyncio.Future[Any]] = field(default_factory=set)
    _conversations: dict[int, SampledConversations] = field(default_factory=dict)
    _equal_prompts: Counter[tuple[int, tuple[int, ...]]] = field(default_factory=Counter)
    _tool_texts: dict[str, str] = field(default_factory=dict)

    def agent(self, name: str) -> int:
        """Return the number of an agent. Raises ApiError (404) for an unknown name."""
        names = [access.name for access in self.agents]
        if name not in names:
            raise unknown_model(name, names)
        return names.index(name)

    async def chat(
        self,
        agent: int,
        messages: Sequence[TemplateMessage],
        tools: Sequence[Any] = (),
        options: CallOptions = CallOptions(),
        listener: CallListener | None = None,
    ) -> list[CallAnswer]:
        """Return the answers to a conversation. Raises ApiError, and UserError if the template rejects it."""
        restored = list(map(self._as_sampled, messages))
        rendered = self.agents[agent].renderer.chat(restored, tools, self._of(agent))
        prompt = []
        for message in restored:
            prompt.append({"role": str(message["role"]), "content": str(message["content"] or "")})
        return await self._sample(_Asked(agent, prompt, rendered, tools, True), options, listener)

    async def complete(
        self,
        agent: int,
        prompt: str,
        options: CallOptions = CallOptions(),
        listener: CallListener | None = None,
    ) -> list[CallAnswer]:
        """Return the answers to a text, which does not go through the chat template. Raises ApiError."""
        rendered = self.agents[agent].renderer.text(prompt, self._of(agent))
        return await self._sample(_Asked(agent, prompt, rendered, (), False), options, listener)

    async def ask(self, name: str, messages: str | Sequence[TemplateMessage], **options: Any) -> str:
        """Return an agent's answer as text, for functions that play an episode. A text is one user message. `options`
        as in `CallOptions`."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        answers = await self.chat(self.agent(name), messages, (), CallOptions(**options))
        return answers[0].text

    def keep(self, call: asyncio.Future[Any]) -> None:
        """Keep a streamed call in the episode, also if the program does not read it to its end."""
        self._streamed.add(call)

    async def finish(self) -> None:
        """Wait until the calls that the program has begun to read are sampled to their ends."""
        await asyncio.gather(*self._streamed, return_exceptions=True)

    def cancel(self) -> None:
        """Stop all streamed calls."""
        for call in self._streamed:
            call.cancel()

    def _of(self, agent: int) -> SampledConversations:
        return self._conversations.setdefault(agent, SampledConversations())

    def _as_sampled(self, message: TemplateMessage) -> TemplateMessage:
        """Return an assistant message with tool calls of this episode as the text that was sampled."""
        for call in message.get("tool_calls") or ():
            if call.get("id") in self._tool_texts:
                # A program sends calls as data, which a template may render in another way than they were sampled.
                return {"role": "assistant", "content": self._tool_texts[call["id"]]}
        return message

    async def _sample(self, asked: _Asked, options: CallOptions, listener: CallListener | None) -> list[CallAnswer]:
        if self.requests >= self.max_calls:
            raise ApiError(403, f"the episode has made {self.max_calls} calls, the limit (gateway.max_calls)", "limit")
        # Counted before the wait, so that requests at the same time cannot pass the limit.
        self.requests += 1
        self.rewritten += asked.rendered.is_rewritten
        request = self._request(asked)
        completions = self.script.given(request, options.choices)
        is_given = completions is not None
        if completions is None:
            completions = await self._generate(asked, self._sampling(request, options), listener)
        elif listener is not None and options.choices == 1:
            self._start(asked, listener)
            listener.add(completions[0].text)
        self.answers[request] = completions
        return [self._record(asked, completion, is_given) for completion in completions]

    async def _generate(
        self, asked: _Asked, sampling: SamplingSpec, listener: CallListener | None
    ) -> tuple[Completion, ...]:
        """Return sampled completions. Raises ApiError, and UserError if the generators are lost."""
        token_ids = asked.rendered.token_ids
        try:
            if listener is None or sampling.num_generations > 1:
                generators = self.agents[asked.agent].generators
                generation = await generators.generate(TokenPrompt(token_ids), sampling, self.priority)
            else:
                generation = await self._stream(asked, sampling, listener)
        except UserError as error:
            # A program may ignore the error and report a reward: the run has to end all the same.
            self.broken = error
            raise
        if not generation.completions:
            problem = f"{len(token_ids)} tokens of the prompt and {sampling.max_new_tokens} of the answer"
            raise ApiError(400, f"{problem} exceed the context of the model", "context_length_exceeded", "messages")
        return generation.completions

    def _start(self, asked: _Asked, listener: CallListener) -> None:
        call_format = self.agents[asked.agent].renderer.call_format if asked.tools else None
        listener.start(len(asked.rendered.token_ids), call_format)

    async def _stream(self, asked: _Asked, sampling: SamplingSpec, listener: CallListener) -> Generation:
        """Return one completion, whose parts reach the listener. Raises ApiError if the parts are not the completion: a
        generator was lost after the first part, and newer weights gave another text."""
        access = self.agents[asked.agent]
        parts: list[str] = []

        def add(text: str) -> None:
            parts.append(text)
            listener.add(text)

        self._start(asked, listener)
        generation = await access.generators.stream(TokenPrompt(asked.rendered.token_ids), sampling, add)
        sent = "".join(parts)
        if any(completion.text != sent for completion in generation.completions):
            self.failure = "a generator was lost while it sampled a stream, and the repeated answer has another text"
            raise ApiError(503, self.failure, "unavailable")
        return generation

    def _request(self, asked: _Asked) -> RequestKey:
        """Return the identity of the next request with this prompt: equal prompts get different answers."""
        prompt = asked.agent, asked.rendered.token_ids
        equal = self._equal_prompts[prompt]
        self._equal_prompts[prompt] += 1
        return *prompt, equal

    def _sampling(self, request: RequestKey, options: CallOptions) -> SamplingSpec:
        agent, token_ids, equal = request
        sampling = self.agents[agent].sampling
        seed, key = self.key
        limit = sampling.max_new_tokens
        if options.max_tokens is not None:
            limit = min(limit, options.max_tokens)
        min_new_tokens = min(sampling.min_new_tokens, limit)
        if options.json_schema:
            min_new_tokens = 0  # a JSON value may be complete before any minimum
        # The name of the stream has the digest, because a prompt may have a hundred thousand ids.
        digest = hashlib.sha256(repr(token_ids).encode()).hexdigest()
        return replace(
            sampling,
            num_generations=options.choices,
            max_new_tokens=limit,
            min_new_tokens=min_new_tokens,
            json_schema=options.json_schema or sampling.json_schema,
            stop=tuple(dict.fromkeys((*sampling.stop, *options.stop))),
            seed=stream_seed(seed, "gateway", *key, agent, digest, equal, *self.script.stream),
        )

    def _record(self, asked: _Asked, completion: Completion, repeated: bool) -> CallAnswer:
        """Add a completion to the calls of the episode, and return it as an answer."""
        rendered = asked.rendered
        recorded = AgentCall(asked.agent, asked.prompt, rendered.token_ids, completion, repeated=repeated)
        self.calls.append(recorded)
        renderer = self.agents[asked.agent].renderer
        self._of(asked.agent).answered.append(renderer.answered(rendered, completion, asked.is_chat))
        text = completion.text
        called: tuple[ToolCall, ...] = ()
        if asked.tools:
            raw = renderer.raw_text(completion)
            in_reasoning = rendered.text.rstrip().endswith(REASONING_BEGINS)
            text, called = parse_tool_calls(text, raw, asked.tools, renderer.call_format, in_reasoning)
            renderer.count_calls(len(called))
            for call in called:
                self._tool_texts[call.id] = completion.text
        reason = "stop"
        if completion.finish_reason == "length":
            reason = "length"  # even after complete calls: another call may have been cut off
        elif called:
            reason = "tool_calls"
        return CallAnswer(text, called, reason, len(completion.token_ids), len(rendered.token_ids))


def task_as_data(task: Task) -> dict[str, Any]:
    """Return a task as the data of its JSON file: its id, prompt and fields. A row of prompts has its columns."""
    data: dict[str, Any] = {"id": task.id, "prompt": task.prompt}
    for name, value in task.fields.items():
        if isinstance(value, TaskRow):
            data |= dict(value.columns) | {"prompt": value.prompt}
        else:
            data.setdefault(name, value)
    return data
