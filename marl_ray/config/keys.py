"""Dotted keys of all settings, and suggestions for unknown keys.

The sections `magrpo` and `grpo` of a file contain the settings of five sections of `Config` and of the agents.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import functools
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from marl_ray import registry
from marl_ray.config.compat import NULL_IS_DEFAULT, aliases_in_section, refuse_reference
from marl_ray.config.dialects import advice, foreign_sections
from marl_ray.config.resource_sections import GeneratorResources, LearnerResources
from marl_ray.config.schema import Config
from marl_ray.config.values import OneTo100
from marl_ray.core.errors import UserError

FLAT = ("rollout", "credit", "optimizer", "evaluation", "loop")
"""Sections of `Config` whose settings are in the file's section `magrpo` or `grpo`."""
AGENT_KEYS = {
    "name": "model.name",
    "temperature": "model.temperature",
    "top_p": "model.top_p",
    "dtype": "model.model_kwargs.torch_dtype",
    "learning_rate": "{algorithm}.learning_rate",
    "max_new_tokens": "{algorithm}.max_new_tokens",
    "reference_kl_coef": "{algorithm}.reference_kl_coef",
    "reference_model": "{algorithm}.reference_model",
    "estimator": "{algorithm}.estimator",
    "preference_beta": "{algorithm}.preference_beta",
    "policy": "{algorithm}.policy",
    "system_prompt": "model.system_prompt",
    "stop": "model.stop",
    "json_schema": "model.json_schema",
    "chat_template_kwargs": "model.chat_template_kwargs",
    "min_new_tokens": "{algorithm}.min_new_tokens",
}
"""The run's key for each setting of an agent. Keys below `resources` are the same for both."""
DERIVED = (
    "agents",
    "environment",
    "dataset.type",
    "model.max_length",
    "{algorithm}.num_agents",
    "{algorithm}.estimator",
    "{algorithm}.turn_gradient_weights",
)
"""Settings whose default, null, is derived from other settings."""
MAX_LISTED = 18
"""Maximum number of known keys that an error message lists."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: the type and default of its key in a file, and the field of `Config`, by its path, that stores its
    value. With `null_is_default`, null is accepted although the type excludes it, and means the default."""

    hint: Any
    default: Any
    owner: type
    place: tuple[str, ...]
    null_is_default: bool


def settings(algorithm: str) -> Mapping[str, Setting]:
    """Return every setting by its key in a file, including `agents` and `num_agents`, which share one field."""
    return _settings(algorithm, tuple(registry.sections().items()))


@functools.cache
def _settings(algorithm: str, sections: tuple[tuple[str, str], ...]) -> Mapping[str, Setting]:
    found = dict(_walk(Config, (), algorithm))
    for name, target in sections:
        found |= _walk(registry.attribute(target, f"section {name}"), (name,), algorithm)
    found[f"{algorithm}.num_agents"] = Setting(OneTo100, None, Config, ("num_agents",), null_is_default=True)
    return found


@functools.cache
def types_of(cls: Any) -> Mapping[str, Any]:
    """Return the types of the fields of a section, including bounds."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _walk(cls: type, path: tuple[str, ...], algorithm: str) -> Iterator[tuple[str, Setting]]:
    derived = {key.format(algorithm=algorithm) for key in DERIVED}
    nullable = derived | {key.format(algorithm=algorithm) for key in NULL_IS_DEFAULT}
    for field in dataclasses.fields(cls):
        hint, place = types_of(cls)[field.name], (*path, field.name)
        if dataclasses.is_dataclass(hint):
            yield from _walk(typing.cast(type, hint), place, algorithm)
        elif place not in (("algorithm",), ("plugin_sections",)):
            key = _key(place, algorithm)
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            yield key, Setting(hint, None if key in derived else default, cls, place, key in nullable)


def _key(place: tuple[str, ...], algorithm: str) -> str:
    if place[0] == "defaults":
        return AGENT_KEYS[place[1]].format(algorithm=algorithm)
    return ".".join((algorithm, *place[1:]) if place[0] in FLAT else place)


@functools.cache
def agent_keys(algorithm: str) -> Mapping[str, str]:
    """Return the keys of one entry of `agents`, each with the run's key that provides its default."""
    own = {key: run.format(algorithm=algorithm) for key, run in AGENT_KEYS.items()}
    for part, cls in (("generator", GeneratorResources), ("learner", LearnerResources)):
        own |= {key: key for field in dataclasses.fields(cls) for key in [f"resources.{part}.{field.name}"]}
    return own


def key_of(config: Config, number: int, field: str) -> str:
    """Return the key that sets a field of agent `number`: the agent's own key if it is given, else the run's."""
    key = f"resources.{field}" if "." in field else field
    return f"agents.{number}.{key}" if key in config.agents[number].given else agent_keys(config.algorithm)[key]


def sections(keys: Iterable[str]) -> set[str]:
    """Return every section that contains one of the dotted keys."""
    return {key[:i] for key in keys for i, letter in enumerate(key) if letter == "."}


def mapping_of(key: str, algorithm: str) -> str | None:
    """Return the setting of mapping type that a dotted key is an entry of, or None."""
    for name, setting in settings(algorithm).items():
        if key.startswith(f"{name}.") and typing.get_origin(setting.hint) is collections.abc.Mapping:
            return name
    return None


def agent_mapping_of(key: str, algorithm: str) -> str | None:
    """Return the key of mapping type of an agent that a dotted key, without `agents.N.`, is an entry of, or None."""
    mappings = (own for own, run in agent_keys(algorithm).items() if mapping_of(f"{run}.", algorithm) == run)
    return next((own for own in mappings if key.startswith(f"{own}.")), None)


def refuse(key: str, value: Any, known: Iterable[str], algorithm: str, prefix: str = "") -> NoReturn:
    """Raise UserError for a dotted key that is not in `known`, with the nearest known setting. `prefix` is prepended to
    keys in the message: `agents.0.` for a setting of an agent."""
    places = sections(known)
    if key in places:
        raise UserError(f"'{prefix}{key}' should be a section with settings, got {value!r}")
    parts = key.split(".")
    for end in range(1, len(parts) + 1):
        parent = ".".join(parts[:end])
        if parent in known:
            raise UserError(f"{prefix}{key}: '{parts[end - 1]}' is a single value, not a section")
        if parent not in places:
            raise _unknown(parent, known, algorithm, prefix)
    raise AssertionError(key)


def _unknown(key: str, known: Iterable[str], algorithm: str, prefix: str) -> UserError:
    section, _, name = key.rpartition(".")
    path = f"{section}." if section else ""
    refuse_reference(name, prefix + path)
    if path == f"{algorithm}." and (replacement := advice(name)) is not None:
        return UserError(f"unknown setting '{prefix}{key}', {replacement}")
    siblings = list(dict.fromkeys(k[len(path) :].split(".")[0] for k in known if k.startswith(path)))
    names = siblings if prefix else [*siblings, *aliases_in_section(section, algorithm)]
    if not section and not prefix:
        names += foreign_sections()
    every = [*(f"{prefix}{k}" for k in known if prefix), *settings(algorithm)]
    hint = f"known here: {', '.join(siblings)}"
    if nearest := _nearest(name, [prefix + path + sibling for sibling in names], every):
        hint = f"did you mean '{nearest}'?"
    elif len(siblings) > MAX_LISTED:
        hint = f"`{f'marl-ray explain {section}'.strip()}` lists the known settings"
    return UserError(f"unknown setting '{prefix}{key}': {hint}")


def _nearest(name: str, siblings: list[str], every: list[str]) -> str | None:
    """Return the most similar dotted key, or None: the same name in any section, a name with these initials, similar
    spelling (in the same section first), or a name that contains the word."""
    last = {key: key.rpartition(".")[2] for key in [*every, *siblings]}

    def similar(keys: list[str], cutoff: float) -> list[str]:
        near = difflib.get_close_matches(name, [last[key] for key in keys], n=1, cutoff=cutoff)
        return [key for key in keys if last[key] in near]

    candidates = (
        [key for key in every if last[key] == name],
        [key for key in every if "".join(word[0] for word in last[key].split("_")) == name],
        similar(siblings, 0.7) or similar(every, 0.85) or similar(siblings, 0.5),
        [key for key in every if name in last[key].split("_")],
    )
    return next((keys[0] for keys in candidates if keys), None)
