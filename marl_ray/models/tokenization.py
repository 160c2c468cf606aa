"""Loading of tokenizers, and encoding of prompts. Generators, learners and exported models share token ids."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from marl_ray.config import ModelConfig
from marl_ray.core.chat import Prompt, as_messages, as_text
from marl_ray.core.errors import UserError
from marl_ray.models.control_tokens import encode_rendered, mark_control_tokens

BASE_WORDS = {"base", "pt"}
NO_VARIABLES: Mapping[str, Any] = {}


def load_tokenizer(name: str, config: ModelConfig) -> Any:
    """Return the tokenizer of model `name`. Raises UserError if `special_tokens` are not in its vocabulary."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(
        name, trust_remote_code=config.model_kwargs.trust_remote_code, **config.tokenizer_kwargs
    )
    if config.special_tokens:
        before = len(tokenizer)
        tokenizer.add_special_tokens(config.special_tokens)
        if len(tokenizer) != before:
            raise UserError(f"model.special_tokens {config.special_tokens} are not in the vocabulary of {name}")
    if config.template_date is not None and "strftime_now" in str(tokenizer.chat_template):
        _stop_clock(tokenizer, datetime.fromisoformat(config.template_date))
    return tokenizer


def _stop_clock(tokenizer: Any, now: datetime) -> None:
    """Give chat templates the same time always, so that prompts of one run do not differ from day to day."""
    # A variable of the template hides the function of the same name that transformers provides.
    tokenizer.apply_chat_template = functools.partial(tokenizer.apply_chat_template, strftime_now=now.strftime)


def save_tokenizer(tokenizer: Any, folder: str | Path) -> None:
    """Write the files of a tokenizer so that transformers 4 and the converters of llama.cpp load them, too.

    transformers 5 writes a class that only itself knows, and a list under a key where transformers 4 expects a mapping.
    """
    tokenizer.save_pretrained(folder)
    file = Path(folder) / "tokenizer_config.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    if content.get("tokenizer_class") == "TokenizersBackend":
        content["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(content.get("extra_special_tokens"), list):
        content["additional_special_tokens"] = content.pop("extra_special_tokens")
    file.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def encode_prompt(
    tokenizer: Any, prompt: Prompt, through_template: bool, template_kwargs: Mapping[str, Any] = NO_VARIABLES
) -> list[int]:
    """Return the token ids of a prompt, either through the chat template with these variables, or as plain text.

    Control tokens in messages are read as text. Plain text is encoded as it is.
    """
    if not through_template:
        return tokenizer(as_text(prompt)).input_ids
    marked = mark_control_tokens(tokenizer, as_messages(prompt))
    options = {"add_generation_prompt": True, "return_dict": False, **template_kwargs}
    if not marked.tokens:
        return tokenizer.apply_chat_template(marked.messages, **options)
    rendered = tokenizer.apply_chat_template(marked.messages, tokenize=False, **options)
    return encode_rendered(tokenizer, marked.restored(rendered))


def encode_answer(tokenizer: Any, text: str, stop: Sequence[str] = ()) -> list[int]:
    """Return the token ids of a given answer as an agent would sample it: up to and including EOS, or with stop texts
    the first of them. Raises UserError if the tokenizer has no EOS token."""
    if stop:
        return tokenizer(text + stop[0], add_special_tokens=False).input_ids
    if tokenizer.eos_token_id is None:
        raise UserError("the tokenizer has no EOS token to end an answer: set model.special_tokens.eos_token")
    return [*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]


def decide_template(name: str, tokenizer: Any, config: ModelConfig) -> tuple[bool, str]:
    """Return whether prompts of model `name` go through the chat template, and the reason.

    `model.use_chat_template` decides if it is set; otherwise chat models use their template. Raises UserError if the
    template is requested but missing, or cannot render a prompt.
    """
    setting = config.use_chat_template
    if not tokenizer.chat_template:
        if setting:
            raise UserError(f"model.use_chat_template is true but {name} has no chat template: set it to null")
        return False, "its tokenizer has no chat template"
    is_chat, why = _is_chat_model(name, tokenizer, config)
    decided = is_chat if setting is None else setting
    if decided:
        _check_template(name, tokenizer)
    if setting is None:
        return is_chat, f"{why}; model.use_chat_template: {str(not is_chat).lower()} changes it"
    reason = f"model.use_chat_template is {str(setting).lower()}"
    if setting != is_chat:
        reason += f", though {why}"
    return setting, reason


def _check_template(name: str, tokenizer: Any) -> None:
    from jinja2 import TemplateError

    try:
        encode_prompt(tokenizer, "QUESTION", through_template=True)
    except (TemplateError, TypeError, ValueError) as error:
        remedy = "set model.use_chat_template to false, or repair the template"
        raise UserError(f"the chat template of {name} cannot render a prompt ({error}): {remedy}") from None


def is_named_base(name: str) -> bool:
    """Return True for a model with "base" or "pt" in its name."""
    return bool(BASE_WORDS & set(re.split(r"[^a-z]+", Path(name).name.lower())))


def _is_chat_model(name: str, tokenizer: Any, config: ModelConfig) -> tuple[bool, str]:
    """Return whether the model stops where its template ends an answer, and the reason in words.

    Base models often ship the template of their chat models, but stop only at the end of a text. Some families use one
    token for both, so a name with "base" or "pt" takes precedence.
    """
    if is_named_base(name):
        return False, "its name says that it is a base model"
    stops = _stop_tokens(name, tokenizer, config)
    ending = _after_answer(tokenizer)
    for token in stops:
        if token in ending:
            return True, f"it stops at {token}, as its template ends an answer"
    return False, f"it is a base model: it stops at {', '.join(stops)}, not where its template ends an answer"


def describe_prompt_format(whose: str, through_template: bool, why: str) -> str:
    """Return one line for the user; `whose` is an agent or a policy."""
    how = "through the chat template" if through_template else "to the model as they are"
    return f"{whose}: prompts go {how} ({why})"


def _stop_tokens(name: str, tokenizer: Any, config: ModelConfig) -> list[str]:
    """Return the tokens that end a completion, by their text."""
    tokens = map(tokenizer.convert_ids_to_tokens, stop_token_ids(name, tokenizer, config))
    return list(filter(None, dict.fromkeys(tokens)))


def stop_token_ids(name: str, tokenizer: Any, config: ModelConfig) -> list[int]:
    """Return the tokens that end a completion: the EOS tokens of the tokenizer and the generation config."""
    from transformers import AutoConfig, GenerationConfig

    try:
        ids = GenerationConfig.from_pretrained(name).eos_token_id
    except OSError:  # the model has no generation config
        ids = AutoConfig.from_pretrained(name, trust_remote_code=config.model_kwargs.trust_remote_code).eos_token_id
    listed = ids if isinstance(ids, list) else [ids]
    return [id for id in dict.fromkeys([tokenizer.eos_token_id, *listed]) if id is not None]


def check_generation_config(name: str) -> None:
    """Raise ValueError if the model has a generation config that transformers refuses to read."""
    from transformers import GenerationConfig

    try:
        GenerationConfig.from_pretrained(name)
    except OSError:
        return  # the model has none
    except ValueError as error:
        raise ValueError(f"its generation_config.json is invalid: {error}") from None


def _after_answer(tokenizer: Any) -> str:
    """Return the text that the template puts after an assistant message, or "" if it cannot render one."""
    from jinja2 import TemplateError

    answer = "ANSWER"
    messages = [{"role": "user", "content": "QUESTION"}, {"role": "assistant", "content": answer}]
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False).rpartition(answer)[2]
    except (TemplateError, TypeError, ValueError):  # templates may raise anything
        return ""


def fingerprint(tokenizer: Any, texts: Iterable[str]) -> str:
    """Return a hash of the ids of `texts` and of the special tokens, equal for tokenizers that agree."""
    digest = hashlib.sha256(repr((len(tokenizer), tokenizer.eos_token_id)).encode())
    for text in texts:
        digest.update(repr(tokenizer(text).input_ids).encode())
    return digest.hexdigest()[:16]
