"""Keys of CoMLRL's environment repositories (BFCL-v4, code completion, code generation, Minecraft, travel, writing),
with the keys to use here, or the reason why there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from marl_ray.core.errors import UserError


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A key without a counterpart, which is left out if it has one of `values` (None: any value).

    With a value in `same` there is no difference, and hence no note.
    """

    why: str
    values: tuple[Any, ...] | None = None
    same: tuple[Any, ...] = (None,)


_ATTENTION = LeftOut("the learner chooses the attention")
_CRITIC = LeftOut("the critic starts from the agent's initial model", (None,))
_CATEGORIES = ["parallel", "parallel_multiple", "live_parallel", "live_parallel_multiple"]
_WEIGHTS = "the weights of the levels are fixed (docs/reference/environments/{}.md): write an environment for others"
_BLOCKS = "the blocks of the agents are fixed (docs/reference/environments/builder.md)"
_SPLIT = "dataset.train_split and dataset.eval_split, such as train[:100]"
_JSON = "json_schema constrains answers to JSON (docs/how-to/prompts.md)"
_ATTACK = "the attack of the spiders is the field attack of a row"
_PLACEMENT = "resources places and loads the models"
_WORDS = "prompts have the words of the environment here"
_HOUSE_BLOCKS = ["white_concrete", "obsidian", "stone_stairs", "stone_bricks", "planks", "air"]
_MISSING_ENVIRONMENTS = ("bridge_build", "resource_gathering")
"""Types of data sets whose environment does not exist here."""

AGENT_MODEL = "agent_model"
"""Section there whose settings are in `model` here."""
PLACES: Mapping[str, str] = {
    "model.trust_remote_code": "model.model_kwargs.trust_remote_code",
    "model.torch_dtype": "model.model_kwargs.torch_dtype",
    "model.dtype": "model.model_kwargs.torch_dtype",
    "model.gradient_checkpointing": "magrpo.gradient_checkpointing",
    "tokenizer": "model.tokenizer_kwargs",
    "dataset.csv_path": "dataset.name",
    "dataset.json_path": "dataset.name",
    "travel.use_chat_template": "model.use_chat_template",
    "travel.system_prompt": "model.system_prompt",
    "prompt.use_chat_template": "model.use_chat_template",
    "wandb.run_name": "wandb.name",
}
"""The key here of a key there."""
VALUES: Mapping[str, Mapping[Any, Any]] = {
    "external.mode": {
        "position_feedback": "level_feedback",
        "score_feedback": "level_passed",
        "code_feedback": "level_feedback",
    },
    "dataset.type": {
        "bfcl": "function_calls",
        "str_build": "word_builder",
        "str_builder": "word_builder",
        "str_rainbow": "word_builder",
        "house_build": "house_builder",
        "house_builder": "house_builder",
        "box_builder": "house_builder",
    },
    "model.model_kwargs.torch_dtype": {
        None: "auto",
        "bf16": "bfloat16",
        "fp16": "float16",
        "fp32": "float32",
    },
}
"""The value here of a value there, by key here."""
WITHOUT_COUNTERPART: Mapping[str, LeftOut] = {
    "model.attn_implementation": _ATTENTION,
    "model.model_kwargs.attn_implementation": _ATTENTION,
    "model.model_kwargs.device_map": LeftOut(_PLACEMENT),
    "model.model_kwargs.low_cpu_mem_usage": LeftOut(_PLACEMENT),
    "critic_model": _CRITIC,
    "critic": _CRITIC,
    "critics": _CRITIC,
    "dataset.version": LeftOut("the rows decide"),
    "dataset.private": LeftOut("the variable HF_TOKEN gives access"),
    "dataset.split_ratio": LeftOut(_SPLIT),
    "dataset.categories": LeftOut("leave the other rows out of the file", (None, _CATEGORIES)),
    "dataset.task_types": LeftOut("leave the other rows out of the file", (None,)),
    "dataset.max_train_samples": LeftOut(_SPLIT, (None,)),
    "dataset.max_eval_samples": LeftOut(_SPLIT, (None,)),
    "dataset.spacing": LeftOut("letters are two positions apart", (2, None)),
    "dataset.local_z": LeftOut("words are drawn at z = 0", (0, None)),
    "external.lim": LeftOut("feedback lists up to 20 positions", (20, None)),
    "external.external_prompt_passthrough": LeftOut("later prompts are complete", (False, None)),
    "external.common_prefix": LeftOut(_WORDS),
    "external.common_suffix": LeftOut(_WORDS),
    "output.save_path": LeftOut("models are in the run folder"),
    "bfcl.role_mode": LeftOut("all agents choose their calls themselves", ("self_select",)),
    "bfcl_reward": LeftOut(
        _WEIGHTS.format("function_calls"),
        (
            {
                "parse_weight": 0.05,
                "function_weight": 0.25,
                "argument_weight": 0.35,
                "count_weight": 0.10,
                "balance_weight": 0.15,
                "exact_bonus": 0.20,
                "overlap_penalty": 0.20,
                "lazy_agent_penalty": 0.15,
                "extra_call_penalty": 0.05,
                "self_duplicate_penalty": 0.05,
                "min_reward": -0.4,
                "max_reward": 1.2,
            },
        ),
    ),
    "travel.role_mode": LeftOut("the fields are divided between two roles", ("partitioned_roles",)),
    "travel.force_json_prefix": LeftOut(_JSON),
    "travel.stop_after_complete_json": LeftOut(_JSON),
    "travel_reward": LeftOut(_WEIGHTS.format("travel")),
    "prompt.provide_graph": LeftOut("prompts always show the target"),
    "task.block_agent1": LeftOut(_BLOCKS, same=(None, ["oak_planks", "stone", "air"], _HOUSE_BLOCKS)),
    "task.block_agent2": LeftOut(_BLOCKS, same=(None, ["white_concrete", "obsidian", "air"], _HOUSE_BLOCKS)),
    "task.max_commands": LeftOut("300 commands for words and 600 for houses", (300, 600)),
    "task.limited_resource": LeftOut("the blocks of an agent are limited", (True,)),
    "task.player": LeftOut(_ATTACK),
    "task.spider": LeftOut(_ATTACK),
    "RPG": LeftOut(_ATTACK),
    "debug": LeftOut("output.verbose shows more", same=(None, False)),
    "patches": LeftOut("trainers here need none"),
    "wandb.enabled": LeftOut("wandb.project: null disables it", (True,)),
}
"""Keys, or whole sections, that have no counterpart here."""
_SHARED_SECTIONS = {"model", "dataset", "output", "external", "travel", "wandb"}
SECTIONS = {AGENT_MODEL} | {key.partition(".")[0] for key in (*PLACES, *WITHOUT_COUNTERPART)} - _SHARED_SECTIONS
"""Sections that only files of CoMLRL have. Its trainers have further ones (`TRAINERS` in `conversion`)."""
SPLITS = ("dataset.train_split", "dataset.eval_split")
_TRAVEL_KEYS = ("config_name", "source_split", "train_samples", "eval_samples")


def convert_sections(tree: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the sections other than the trainer's by the keys used here, notes on keys that are left out, and the keys
    that are refused with the reason."""
    converted: dict[str, Any] = {}
    notes = []
    refused = []
    tree = _without_equal_critics(_with_model(tree))
    kind = (tree.get("dataset") or {}).get("type")
    if kind in _MISSING_ENVIRONMENTS:
        return {}, [], [f"dataset.type {kind} (an environment that does not exist here: docs/how-to/extend.md)"]
    for key, value in _settings(_with_splits(tree)):
        left_out = WITHOUT_COUNTERPART.get(key)
        if left_out is not None:
            if left_out.values is not None and not _among(value, left_out.values):
                refused.append(f"{key} ({left_out.why})")
            elif left_out.values is None and value not in left_out.same:
                notes.append(f"{key} is left out: {left_out.why}")
            continue
        place = PLACES.get(key, key)
        if value is None and key in PLACES and place not in VALUES:
            continue  # their default
        if key in SPLITS and str(value).startswith("["):
            value = f"train{value}"
        values = VALUES.get(place, {})
        if not isinstance(value, list | dict) and value in values:
            value = values[value]
        _put(converted, place, value)
    return converted, notes, refused


def _with_model(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree with the settings of `agent_model` in `model`. Raises UserError if a section is a value."""
    renamed: dict[str, Any] = {}
    for section, content in tree.items():
        if section in (AGENT_MODEL, "model", "dataset") and not isinstance(content, Mapping | None):
            raise UserError(f"'{section}' should be a section with settings, got {content!r}")
        if section in (AGENT_MODEL, "model"):
            # The section that comes later in the file wins.
            renamed["model"] = {**renamed.get("model", {}), **(content or {})}
        else:
            renamed[section] = content
    return renamed


def _without_equal_critics(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree without the models of critics that are the agents' models, as always here."""
    agent = (tree.get("model") or {}).get("name")
    rest = dict(tree)
    for section in ("critic_model", "critic"):
        if isinstance(tree.get(section), Mapping) and tree[section].get("name") == agent:
            del rest[section]
    critics = tree.get("critics")
    if critics:
        agents = tree.get("agents") or [agent] * len(critics)
        if critics == agents:
            del rest["critics"]
    return rest


def _settings(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings by key: whole sections that the tables name, and the settings of the others."""
    for section, content in tree.items():
        if section in PLACES or section in WITHOUT_COUNTERPART or not isinstance(content, Mapping):
            yield section, content
            continue
        for name, value in content.items():
            if (section, name) == ("model", "model_kwargs") and isinstance(value, Mapping):
                for option, inner in value.items():
                    yield f"model.model_kwargs.{option}", inner
            else:
                yield f"{section}.{name}", value


def _with_splits(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tree with the splits of a travel data set in place of its numbers of rows."""
    dataset = tree.get("dataset")
    if not isinstance(dataset, Mapping) or not any(name in dataset for name in _TRAVEL_KEYS):
        return tree
    rest = dict(dataset)
    config_name, split, train, held_out = [rest.pop(name, None) for name in _TRAVEL_KEYS]
    name = dataset.get("name")
    if config_name:
        name = f"{name}:{config_name}"
    split = split or "train"
    rest["name"] = name
    rest.setdefault("type", "travel")
    rest["train_split"] = split
    rest["eval_split"] = None
    if train is not None:
        # The rows for evaluation follow the rows for training.
        rest["train_split"] = f"{split}[:{train}]"
        if held_out:
            rest["eval_split"] = f"{split}[{train}:{train + held_out}]"
    return {**tree, "dataset": rest}


def _among(value: Any, values: tuple[Any, ...]) -> bool:
    """Return whether a value is one of `values`; a mapping may have fewer entries."""
    for allowed in values:
        if value == allowed:
            return True
        if isinstance(value, Mapping) and isinstance(allowed, Mapping) and value.items() <= allowed.items():
            return True
    return False


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key. Sections that both files have are merged."""
    *sections, name = key.split(".")
    for section in sections:
        inner = tree.setdefault(section, {})
        if not isinstance(inner, dict):
            inner = tree[section] = {}
        tree = inner
    if isinstance(tree.get(name), dict) and isinstance(value, dict):
        value = {**tree[name], **value}
    tree[name] = value
