"""Model names: hub ids, local folders, and the policies that come with the package."""

from __future__ import annotations

from pathlib import Path

from marl_ray.config.schema import Config, ModelConfig
from marl_ray.models.hub import is_hub_id
from marl_ray.models.smollm2 import smollm2, smollm2_folder
from marl_ray.models.tokenization import decide_template, load_tokenizer, prompt_note
from marl_ray.toy import BASE_PATH

TOY, SMOLLM2 = "bundled:toy-base", "bundled:smollm2-135m"


def resolve_model(name: str, fetch: bool = True) -> str:
    """The path or hub id that transformers and vLLM load. Raises ValueError for what is plainly not there.

    `bundled:smollm2-135m` is fetched on first use, unless `fetch` is false (see `marl_ray.models.smollm2`).
    """
    if name.startswith("bundled:"):
        if name == TOY:
            return str(BASE_PATH)
        if name == SMOLLM2:
            try:
                return str(smollm2() if fetch else smollm2_folder())
            except ValueError as error:
                raise ValueError(f"model {name} cannot be loaded: {error}") from None
        raise ValueError(f"model {name} does not exist; bundled models: {TOY}, {SMOLLM2}")
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            raise ValueError(f"model {name} cannot be loaded: the folder has no config.json")
        return str(path.resolve())
    if name.startswith(("/", "./", "../", "~")):
        raise ValueError(f"model {name} cannot be loaded: there is no such folder")
    if not is_hub_id(name):
        raise ValueError(f"model {name!r} is neither a folder here nor a hub id (owner/name)")
    return name


def check_model(name: str, config: ModelConfig) -> tuple[bool, str]:
    """Read the model's configuration and its tokenizer; see `decide_template` for what is returned.

    Raises ValueError with one line.
    """
    from transformers import AutoConfig

    path = resolve_model(name)
    try:
        AutoConfig.from_pretrained(path, trust_remote_code=config.model_kwargs.trust_remote_code)
        tokenizer = load_tokenizer(path, config)
    except Exception as error:  # transformers and the hub raise many kinds; each means the same here
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"model {name} cannot be loaded: {reason}") from None
    return decide_template(path, tokenizer, config)


def describe_prompts(config: Config) -> list[str]:
    """How each agent's prompts reach its model, as far as that is known without a download."""
    given = config.model.use_chat_template
    lines = []
    for agent, name in enumerate(config.model_names):
        if Path(resolve_model(name, fetch=False)).is_dir():
            lines.append(prompt_note(agent, *check_model(name, config.model)))
        elif given is None:
            lines.append(f"agent {agent}: its tokenizer, not read in a dry run, decides on the chat template")
        else:
            lines.append(prompt_note(agent, given, f"model.use_chat_template is {str(given).lower()}"))
    return lines
