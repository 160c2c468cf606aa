"""Requests that are in flight during a weight update, and the versions that sampled their tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.handle import Deadline
from marl_ray.core.episode import Completion, Generation
from tests.actors.helpers import PROMPTS, SAMPLING

LONG = replace(SAMPLING, num_generations=2, max_new_tokens=300, temperature=2.0, seed=7)
SOON = Deadline(120.0, "start_s", "to answer")


async def long_requests(engine: GeneratorGroup) -> list[asyncio.Task[Generation]]:
    """Submit long requests, and return when every engine has answered a heartbeat since."""
    tasks = [
        asyncio.create_task(engine.generate(prompt, replace(LONG, seed=i), priority=i))
        for i, prompt in enumerate(PROMPTS)
    ]
    await asyncio.sleep(0)  # all are submitted
    await asyncio.gather(
        *(replica.call(GenerationActor.heartbeat).within(SOON) for replica in engine.replicas.serving())
    )
    return tasks


def rescore(policies: Sequence[Any], prompt_ids: Sequence[int], completion: Completion) -> list[float]:
    """Return log-probabilities of the tokens, keeping the KV cache of earlier versions like the engine.

    The policy of a span reads the last token of the previous span, and its own tokens except the last.
    """
    ids = torch.tensor([[*prompt_ids, *completion.token_ids]])
    cache, start, end = None, 0, len(prompt_ids) - 1
    logprobs: list[torch.Tensor] = []
    for version, tokens in completion.spans:
        end += tokens
        with torch.no_grad():
            out = policies[version](ids[:, start:end], past_key_values=cache, use_cache=True)
        scores = (out.logits[0, -tokens:].float() / LONG.temperature).log_softmax(-1)
        logprobs.append(scores.gather(1, ids[0, end - tokens + 1 : end + 1, None])[:, 0])
        cache, start = out.past_key_values, end
    return [float(value) for value in torch.cat(logprobs)]


def assert_sampled_by(policies: Sequence[Any], generations: Sequence[Generation]) -> None:
    """Assert that every token has the log-probability of the version that labels it."""
    for generation in generations:
        for completion in generation.completions:
            assert sum(tokens for _, tokens in completion.spans) == len(completion.token_ids)
            expected = rescore(policies, generation.prompt_ids, completion)
            gaps = [a - b for a, b in zip(completion.logprobs, expected, strict=True)]
            assert max(map(abs, gaps)) < 1e-4
