"""Loading one tokenizer the same way everywhere, and turning prompts into ids.

Token ids are the truth: generators, learners and saved models must load one and the same tokenizer, which
`fingerprint` lets the trainer check at the start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from marl_ray.config.schema import ModelConfig


def load_tokenizer(name: str, config: ModelConfig) -> Any:
    """The tokenizer of model `name`. Raises ValueError when `special_tokens` are not in its vocabulary."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(
        name, trust_remote_code=config.model_kwargs.trust_remote_code, **config.tokenizer_kwargs
    )
    if config.special_tokens:
        before = len(tokenizer)
        tokenizer.add_special_tokens(config.special_tokens)
        if len(tokenizer) != before:
            raise ValueError(f"model.special_tokens {config.special_tokens} are not in the vocabulary of {name}")
    return tokenizer


def encode_prompt(tokenizer: Any, text: str, use_chat_template: bool) -> list[int]:
    """Ids of a prompt: through the chat template when there is one and it is not forbidden."""
    if use_chat_template and tokenizer.chat_template:
        message = [{"role": "user", "content": text}]
        return tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
    return tokenizer(text).input_ids


def fingerprint(tokenizer: Any, texts: Iterable[str]) -> str:
    """A hash of the ids of `texts` and of the special tokens; equal where tokenizers agree."""
    digest = hashlib.sha256(repr((len(tokenizer), tokenizer.eos_token_id)).encode())
    for text in texts:
        digest.update(repr(tokenizer(text).input_ids).encode())
    return digest.hexdigest()[:16]
