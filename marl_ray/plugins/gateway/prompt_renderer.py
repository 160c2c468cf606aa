"""Token ids of the prompts of a program.

A program sends whole conversations as text. If the text of a request begins with the text of an earlier prompt and its
answer, the request continues that conversation: its ids are the earlier prompt's ids, the sampled ids, and the ids of
the remaining text. Nothing that was sampled is encoded again, so that the learner can train the conversation in one
row. A request whose earlier answers are rendered in another way (a template that drops reasoning, or trims an answer)
does not continue the conversation: it is encoded as a whole, and `is_rewritten`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from marl_ray.config import AgentConfig, ModelConfig
from marl_ray.core.chat import as_messages, with_system_prompt
from marl_ray.core.episode import Completion
from marl_ray.core.errors import RejectedMessages
from marl_ray.http.request_formats import ApiError
from marl_ray.models.control_tokens import RenderedText, encode_rendered, mark_control_tokens
from marl_ray.models.names import resolve_model
from marl_ray.models.tokenization import decide_template, load_tokenizer
from marl_ray.plugins.gateway.tool_calls import MARKS, CallFormat, format_of_template

logger = logging.getLogger(__name__)

ANSWERS_BEFORE_WARNING = 100
"""Answers to prompts with tools, without any call, after which a warning is due."""
KEPT_PROMPTS = 256
"""Number of first prompts whose token ids are kept, because all siblings of a task send the same ones."""
CHARS_PER_TOKEN = 8
"""Of a text that is longer than the context at this rate, only the beginning is encoded first. Text has 3 to 5."""
CUT_TOKENS = 16
"""Tokens that a cut may add to a beginning."""
TemplateMessage = Mapping[str, Any]
"""A message of a request, with the keys of the chat template: role, content, and for tools tool_calls and others."""


@dataclass(frozen=True, slots=True)
class RenderedRequest:
    """The text of a prompt and its token ids. `is_rewritten`: it has an answer that was sampled, and is rendered in
    another way than it was read and sampled."""

    text: str
    token_ids: tuple[int, ...]
    is_rewritten: bool


@dataclass(frozen=True, slots=True)
class _Answered:
    """A prompt with an answer: the text that a continuation begins with, its ids, and the answer."""

    text: str
    token_ids: tuple[int, ...]
    answer: str


@dataclass(slots=True)
class SampledConversations:
    """The prompts and answers of one agent in one episode."""

    answered: list[_Answered] = field(default_factory=list)

    def longest_prefix(self, text: str, ends: Collection[str] | None) -> _Answered | None:
        """Return the longest conversation that `text` continues, the latest of equal ones. `ends` are the beginnings of
        `text` that end with an answer, None if special tokens mark the ends."""
        longest = None
        for conversation in self.answered:
            continues = conversation.text in ends if ends is not None else text.startswith(conversation.text)
            if continues and (longest is None or len(conversation.text) >= len(longest.text)):
                longest = conversation
        return longest

    def has_answer(self, answer: str) -> bool:
        return any(one.answer == answer for one in self.answered)


class PromptRenderer:
    """The rendering and encoding of one agent's prompts, with its model's tokenizer and chat template.

    For a model without a template, a conversation is its messages with an empty line between them, in which an answer
    directly follows its prompt.
    """

    def __init__(self, agent: AgentConfig, model: ModelConfig) -> None:
        path = resolve_model(agent.name)
        self._tokenizer = load_tokenizer(path, model)
        self._through_template, _ = decide_template(path, self._tokenizer, model)
        self._agent, self._context = agent, model.max_length
        self._encoded = lru_cache(KEPT_PROMPTS)(self._encode_whole)
        self.call_format: CallFormat = "tagged"
        """The format of tool calls that the template teaches."""
        if self.renders_tools:
            self.call_format = format_of_template(str(self._tokenizer.chat_template))
        self._answers_without_calls: int | None = 0
        """Answers with tools since the start, None once one of them had a call."""

    @property
    def renders_tools(self) -> bool:
        """Whether prompts go through a chat template that renders tools."""
        return self._through_template and "tools" in str(self._tokenizer.chat_template)

    def count_calls(self, calls: int) -> None:
        """Count an answer to a prompt with tools. Warn if none of the first answers has a call."""
        if calls:
            self._answers_without_calls = None
        if self._answers_without_calls is None:
            return
        self._answers_without_calls += 1
        if self._answers_without_calls == ANSWERS_BEFORE_WARNING:
            mark = MARKS[self.call_format][0]
            logger.warning(
                f"{self._agent.name} was given tools, and none of its first {ANSWERS_BEFORE_WARNING} answers has a "
                f"tool call (format {self.call_format}: {mark} ...). See its answers in episodes.jsonl: either it "
                "does not call, or its calls have another format than its chat template teaches"
            )

    def chat(
        self, messages: Sequence[TemplateMessage], tools: Sequence[Any], conversations: SampledConversations
    ) -> RenderedRequest:
        """Return the prompt of a conversation. Raises UserError if the template rejects the messages, and ApiError if
        they are far beyond the context."""
        if self._agent.system_prompt is not None:
            messages = as_messages(with_system_prompt(messages, self._agent.system_prompt))
        last = None
        ends = []
        for number, message in enumerate(messages, 1):
            if message["role"] == "assistant":
                last = message["content"]
                if not self._through_template:
                    ends.append(plain_text(messages[:number]))
        if self._through_template:
            return self._encode(self._render(messages, tools), last, conversations)
        return self._encode(RenderedText(plain_text(messages)), last, conversations, ends)

    def text(self, text: str, conversations: SampledConversations) -> RenderedRequest:
        """Return the prompt of a text, which does not go through the template."""
        return self._encode(RenderedText(text), None, conversations)

    def answered(self, request: RenderedRequest, completion: Completion, is_chat: bool) -> _Answered:
        """Return the conversation up to a completion.

        Its text has the special tokens that were sampled, because a template renders them. Plain messages have none, so
        without a template the text ends with the answer's text, although its ids may end with an end-of-sequence token.
        """
        text = completion.text
        if self._through_template or not is_chat:
            text = self.raw_text(completion)
        return _Answered(request.text + text, request.token_ids + completion.token_ids, completion.text)

    def raw_text(self, completion: Completion) -> str:
        """Return the text of a completion with special tokens, in which templates may mark tool calls."""
        return self._tokenizer.decode(completion.token_ids, skip_special_tokens=False)

    def _encode(
        self,
        rendered: RenderedText,
        last_answer: str | None,
        conversations: SampledConversations,
        ends: Collection[str] | None = None,
    ) -> RenderedRequest:
        text = rendered.text
        prefix = conversations.longest_prefix(text, ends)
        continues = prefix is not None and (last_answer is None or prefix.answer == last_answer)
        # An answer that was not sampled here, such as an example in the prompt, is not a rewritten answer.
        is_rewritten = last_answer is not None and not continues and conversations.has_answer(last_answer)
        self._check_length(text)
        # An earlier conversation whose last answer differs may still begin with the same tokens.
        if prefix is None:
            return RenderedRequest(text, self._encoded(rendered), is_rewritten)
        rest = encode_rendered(self._tokenizer, rendered, start=len(prefix.text))
        return RenderedRequest(text, (*prefix.token_ids, *rest), is_rewritten)

    def _check_length(self, text: str) -> None:
        """Raise ApiError for a text far beyond the context. Encoding all of it would keep the event loop of the run for
        seconds per MB."""
        beginning = text[: self._context * CHARS_PER_TOKEN]
        if len(beginning) < len(text):
            tokens = len(self._tokenizer(beginning, add_special_tokens=False).input_ids)
            if tokens > self._context + CUT_TOKENS:
                problem = f"the prompt has more tokens than the context of the model, {self._context}"
                raise ApiError(400, problem, "context_length_exceeded", "messages")

    def _encode_whole(self, rendered: RenderedText) -> tuple[int, ...]:
        """Return the token ids of a prompt that continues no conversation."""
        if self._through_template:
            return tuple(encode_rendered(self._tokenizer, rendered))
        return tuple(self._tokenizer(rendered.text).input_ids)

    def _render(self, messages: Sequence[TemplateMessage], tools: Sequence[Any]) -> RenderedText:
        from jinja2 import TemplateError

        arguments: dict[str, Any] = {}
        if tools:  # some templates write an opening for an empty list
            arguments["tools"] = list(tools)
        marked = mark_control_tokens(self._tokenizer, messages)
        try:
            rendered = self._tokenizer.apply_chat_template(
                marked.messages,
                tokenize=False,
                add_generation_prompt=True,
                **arguments,
                **self._agent.chat_template_kwargs,
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            reason = str(error)[:200]
            raise RejectedMessages(f"the chat template of the model rejects these messages: {reason}") from None
        return marked.restored(rendered)


def plain_text(messages: Sequence[TemplateMessage]) -> str:
    """Return a conversation as text for a model without a template.

    Example:
        >>> plain_text([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
        'ab'
    """
    text = ""
    follows_answer = False
    for message in as_messages(messages):
        content = message["content"] or ""
        is_answer = message["role"] == "assistant"
        if text and not is_answer:
            if not follows_answer:
                text = text.rstrip("\n")
            text += "\n\n"
        text += content
        follows_answer = is_answer
    return text
