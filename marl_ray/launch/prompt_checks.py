"""Rendering of the first prompts before a run starts, and warnings of prompts for which `max_length` is too small."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from marl_ray.config import Config
from marl_ray.config.keys import key_of
from marl_ray.core.chat import Prompt, with_system_prompt
from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize
from marl_ray.environments.base import BaseEnvironment
from marl_ray.environments.plugin_checks import check_prompts, qualified_method_name
from marl_ray.environments.program_environment import ProgramEnvironment
from marl_ray.models.conversations import describe_rewriting, extend_conversation
from marl_ray.models.names import resolve_model
from marl_ray.models.tokenization import encode_prompt, load_tokenizer
from marl_ray.trainer.context import RenderedPrompt

logger = logging.getLogger(__name__)

MEASURED_TASKS = 64
"""Number of tasks whose prompts are measured before the actors start, which measure all of them."""


def check_prompts_of_agents(
    config: Config,
    environment: BaseEnvironment,
    tasks: Sequence[Task],
    templates: Mapping[str, tuple[bool, str]],
    dry: bool,
) -> tuple[RenderedPrompt, ...]:
    """Render the first prompts, and warn if `model.max_length` cannot hold prompts and completions.

    `templates` has the result of `check_model` per loaded model; agents of other models are left out. In a real run the
    actors count the tokens of every first prompt, so that only a dry run warns of these. Raises UserError for a prompt
    that the chat template cannot render.
    """
    load = cache(lambda name: load_tokenizer(resolve_model(name), config.model))
    rendered: list[RenderedPrompt] = []
    for agent, settings in enumerate(config.agents):
        if settings.name not in templates or not tasks:
            continue
        if isinstance(environment, ProgramEnvironment):
            continue  # only the program knows its prompts
        tokenizer = load(settings.name)
        use_template, _ = templates[settings.name]
        prompts = []
        for task in tasks[:MEASURED_TASKS]:
            prompts.append(_encode(config, environment, task, agent, tokenizer, use_template))
        first = prompts[0]
        rendered.append(RenderedPrompt(agent, tasks[0].id, tokenizer.decode(first), len(first)))
        has_conversations = config.external.composition == "chat" and config.training.num_turns > 1
        if has_conversations and use_template:
            _check_conversation(config, environment.first_prompts(tasks[0])[agent], agent, tokenizer)
        _warn_of_length(config, agent, list(map(len, prompts)), dry)
    return tuple(rendered)


def _encode(
    config: Config,
    environment: BaseEnvironment,
    task: Task,
    agent: int,
    tokenizer: Any,
    use_template: bool,
) -> list[int]:
    from jinja2 import TemplateError

    settings = config.agents[agent]
    prompts = environment.first_prompts(task)
    check_prompts(qualified_method_name(environment, "first_prompts"), prompts, config.num_agents)
    prompt = with_system_prompt(prompts[agent], settings.system_prompt)
    try:
        return encode_prompt(tokenizer, prompt, use_template, settings.chat_template_kwargs)
    except (TemplateError, TypeError, ValueError) as error:
        remedy = f"change {key_of(config, agent, 'system_prompt')} or {key_of(config, agent, 'chat_template_kwargs')}"
        if isinstance(prompt, str) or settings.system_prompt is None:
            remedy = "set model.use_chat_template to false, or change the environment's messages"
        raise UserError(
            f"the chat template of {settings.name} cannot render the first prompt of agent {agent} ({error}): {remedy}"
        ) from None


def _check_conversation(config: Config, prompt: Prompt, agent: int, tokenizer: Any) -> None:
    """Raise UserError if the chat template cannot continue a conversation. Warn if it would change earlier turns."""
    from jinja2 import TemplateError

    settings = config.agents[agent]
    variables = settings.chat_template_kwargs
    try:
        extend_conversation(tokenizer, [0], "NEXT", through_template=True, template_kwargs=variables)
        change = describe_rewriting(tokenizer, with_system_prompt(prompt, settings.system_prompt), variables)
    except (TemplateError, TypeError, ValueError) as error:
        raise UserError(
            f"external.composition chat: the chat template of {settings.name} cannot continue a conversation "
            f"({error}): set composition to prompt, or model.use_chat_template to false"
        ) from None
    if change:
        logger.warning(
            f"agent {agent}: the chat template of {settings.name} {change}, and with external.composition chat the "
            "model reads them as they were sampled: serve it with whole conversations, too"
        )


def _warn_of_length(config: Config, agent: int, lengths: Sequence[int], dry: bool) -> None:
    """Warn of prompts that leave no room for `max_new_tokens`, in the first turn or certainly in the last."""
    limit = config.model.max_length
    new_tokens = config.agents[agent].max_new_tokens
    turns = config.training.num_turns
    external = config.external
    key = f"{key_of(config, agent, 'max_new_tokens')} {new_tokens}"
    too_long = sum(length + new_tokens > limit for length in lengths)
    if too_long and dry:
        logger.warning(
            f"agent {agent}: {too_long} of {pluralize(len(lengths), 'measured prompt')} and {key} exceed "
            f"model.max_length {limit}, so these tasks will be skipped: raise max_length or lower max_new_tokens"
        )
    if turns == 1 or too_long:
        return
    # The last turn holds at least this; the length of feedback is not known here.
    prompt_tokens = 0
    answers = 1
    if external.composition == "chat":
        prompt_tokens = max(lengths)
        answers = turns
    else:
        if external.original_prompt:
            prompt_tokens = max(lengths)
        if external.previous_response:
            answers = 2
    if prompt_tokens + answers * new_tokens > limit:
        with_prompt = "with the first prompt " if prompt_tokens else ""
        logger.warning(
            f"agent {agent}: up to {pluralize(answers, 'answer')} of {key} {with_prompt}may exceed model.max_length "
            f"{limit} in turn {turns}, which ends the episode: raise max_length or lower max_new_tokens"
        )
