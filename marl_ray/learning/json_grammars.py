"""Tokens that a JSON schema allows at each position of a completion, as the engine allowed them when it sampled.

The learner computes log-probabilities of a constrained completion over the allowed tokens only, so that they are those
of the sampler, and the gradient is that of the constrained policy. A token without an alternative has no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from marl_ray.config import ModelConfig
from marl_ray.learning.micro_batches import NO_TOKEN, MicroBatch
from marl_ray.models.tokenization import stop_token_ids

ALL = -1
"""A word of a mask in which all 32 tokens are allowed."""


class JsonGrammars:
    """The grammars of one policy's tokenizer and vocabulary, compiled by xgrammar as vLLM compiles them."""

    def __init__(self, model_path: str, tokenizer: Any, config: ModelConfig, vocabulary: int) -> None:
        self._model_path = model_path
        self._tokenizer = tokenizer
        self._config = config
        self._vocabulary = vocabulary
        self._compiler: Any = None
        self._stops: list[int] = []

    def allowed(self, batch: MicroBatch) -> torch.Tensor | None:
        """Return a bit per token of the vocabulary, [B * C, words of 32], or None if no completion is constrained."""
        if not any(completion.json_schema for completion in batch.completions):
            return None
        words = -(-self._vocabulary // 32)  # rounded up
        of_completions = []
        for completion in batch.completions:
            if completion.json_schema:
                of_completions.append(self.masks(completion.json_schema, completion.token_ids))
            else:
                of_completions.append(torch.full((len(completion.token_ids), words), ALL, dtype=torch.int32))
        masks = torch.full((len(batch.tokens), words), ALL, dtype=torch.int32)
        # The tokens of a micro-batch have the order of its completions.
        masks[(batch.tokens != NO_TOKEN).cpu()] = torch.cat(of_completions)
        return masks.to(batch.tokens.device)

    def masks(self, schema: str, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the allowed tokens before each token of a completion, [K, words]. Raises RuntimeError if a token is
        not allowed."""
        import xgrammar

        if self._compiler is None:
            # Made late, because most runs have no schema.
            vocabulary = xgrammar.TokenizerInfo.from_huggingface(self._tokenizer, vocab_size=self._vocabulary)
            self._compiler = xgrammar.GrammarCompiler(vocabulary, max_threads=1)
            self._stops = stop_token_ids(self._model_path, self._tokenizer, self._config)
        # The arguments of vLLM with disable_any_whitespace (`marl_ray.actors.engine`).
        grammar = self._compiler.compile_json_schema(schema, any_whitespace=False, separators=(",", ":"))
        matcher = xgrammar.GrammarMatcher(grammar, override_stop_tokens=self._stops)
        masks = xgrammar.allocate_token_bitmask(len(token_ids), self._vocabulary)
        for position, token in enumerate(token_ids):
            matcher.fill_next_token_bitmask(masks, position)
            if not matcher.accept_token(token):
                raise RuntimeError(f"token {token} at position {position} of a completion is not allowed by {schema}")
        return masks
