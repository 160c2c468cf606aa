"""Dotted keys of all settings, and suggestions for unknown keys."""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import functools
import inspect
import operator
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from marl_ray import registry
from marl_ray.config.agent_section import AgentConfig, AgentModel, AgentResources
from marl_ray.config.algorithm_section import AgentLearning, AlgorithmConfig
from marl_ray.config.compat import aliases_in_section, refuse_reference
from marl_ray.config.dialects import advice, foreign_sections
from marl_ray.config.schema import Config
from marl_ray.config.values import DERIVED, OR_DEFAULT
from marl_ray.core.errors import UserError

MAX_LISTED = 18
"""Maximum number of known keys that an error message lists."""
NO_SETTINGS = ("algorithm", "plugin_sections")
"""Fields of `Config` that are no settings of their own."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: the type and default of its key in a file, and the class of its section.

    With `null_is_default`, null is accepted although the type excludes it, and means the default.
    """

    hint: Any
    default: Any
    owner: type
    null_is_default: bool


def settings(algorithm: str) -> Mapping[str, Setting]:
    """Return every setting by its key in a file."""
    return _settings(algorithm, tuple(registry.sections().items()))


@functools.cache
def _settings(algorithm: str, sections: tuple[tuple[str, str], ...]) -> Mapping[str, Setting]:
    found = dict(_walk(Config, "", algorithm))
    for name, target in sections:
        found |= _walk(registry.attribute(target, f"section {name}"), f"{name}.", algorithm)
    return found


@functools.cache
def types_of(cls: Any) -> Mapping[str, Any]:
    """Return the types of the fields of a section, including bounds."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _walk(cls: type, prefix: str, algorithm: str) -> Iterator[tuple[str, Setting]]:
    """Yield the settings of a section and of the sections in it. A key is the path of the attribute, with the names of
    `section_name`."""
    for field in dataclasses.fields(cls):
        hint = types_of(cls)[field.name]
        if dataclasses.is_dataclass(hint):
            name = section_name(field.name, hint, algorithm)
            yield from _walk(typing.cast(type, hint), f"{prefix}{name}.", algorithm)
        elif cls is not Config or field.name not in NO_SETTINGS:
            marks = getattr(hint, "__metadata__", ())
            default = field.default
            if DERIVED in marks:
                default = None
            elif field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            null_is_default = DERIVED in marks or OR_DEFAULT in marks
            yield f"{prefix}{field.name}", Setting(hint, default, _owner(cls, field.name), null_is_default)


def section_name(field: str, cls: Any, algorithm: str) -> str:
    """Return the name in a file of a section: of its field, or of the algorithm for the field `training`."""
    if cls is AlgorithmConfig:
        return algorithm
    return field


def _owner(cls: type, field: str) -> type:
    """Return the class that declares a field, which has its description."""
    for base in cls.__mro__:
        if field in inspect.get_annotations(base):
            return base
    raise AssertionError(field)


@functools.cache
def agent_keys(algorithm: str) -> Mapping[str, str]:
    """Return the keys of one entry of `agents`, each with the run's key that provides its default."""
    own: dict[str, str] = {}
    for name in types_of(AgentModel):
        own[name] = f"model.{name}"
    own["dtype"] = "model.model_kwargs.torch_dtype"
    for name in types_of(AgentLearning):
        own[name] = f"{algorithm}.{name}"
    for part, cls in types_of(AgentResources).items():
        for name in types_of(cls):
            own[f"resources.{part}.{name}"] = f"resources.{part}.{name}"
    return own


def key_of(config: Config, number: int, field: str) -> str:
    """Return the key that sets a field of agent `number`: the agent's own key if it is given, else the run's."""
    agent = config.agents[number]
    if "." in field:
        return resource_key(agent, number, field)
    if field in agent.given:
        return f"agents.{number}.{field}"
    return agent_keys(config.algorithm)[field]


def resource_key(agent: AgentConfig, number: int, field: str) -> str:
    """Return the key that sets a resource of agent `number`: the agent's own key if it is given, else the run's."""
    key = f"resources.{field}"
    if key in agent.given:
        return f"agents.{number}.{key}"
    return key


def value_at(config: Config, key: str) -> Any:
    """Return the value of a setting."""
    # The config has the section of its algorithm under that name too (`Config.__getattr__`).
    return operator.attrgetter(key)(config)


def sections(keys: Iterable[str]) -> set[str]:
    """Return every section that contains one of the dotted keys."""
    found: set[str] = set()
    for key in keys:
        parent = key.rpartition(".")[0]
        while parent:
            found.add(parent)
            parent = parent.rpartition(".")[0]
    return found


def mapping_of(key: str, algorithm: str) -> str | None:
    """Return the setting of mapping type that a dotted key is an entry of, or None."""
    for name, setting in settings(algorithm).items():
        if key.startswith(f"{name}.") and typing.get_origin(setting.hint) is collections.abc.Mapping:
            return name
    return None


def agent_mapping_of(key: str, algorithm: str) -> str | None:
    """Return the key of mapping type of an agent that a dotted key, without `agents.N.`, is an entry of, or None."""
    for own, run_key in agent_keys(algorithm).items():
        if key.startswith(f"{own}.") and mapping_of(f"{run_key}.", algorithm) == run_key:
            return own
    return None


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
    section, dot, name = key.rpartition(".")
    path = section + dot
    refuse_reference(name, prefix + path)
    if prefix:
        for own, run_key in agent_keys(algorithm).items():
            if run_key.startswith(f"{key}."):
                text = f"an agent's settings of '{key}' need no section: write '{prefix}{own}' and the like"
                return UserError(f"unknown setting '{prefix}{key}': {text}")
    if section == algorithm:
        replacement = advice(name)
        if replacement is not None:
            return UserError(f"unknown setting '{prefix}{key}', {replacement}")
    siblings: dict[str, None] = {}
    """Names of settings and sections beside the unknown one, in their order."""
    every: list[str] = []
    """Keys of all settings."""
    for other in known:
        if prefix:
            every.append(prefix + other)
        if other.startswith(path):
            siblings[other.removeprefix(path).partition(".")[0]] = None
    every += settings(algorithm)
    names = list(siblings)
    if not prefix:
        names += aliases_in_section(section, algorithm)
        if not section:
            names += foreign_sections()
    nearest = _nearest(name, [prefix + path + sibling for sibling in names], every)
    hint = f"known here: {', '.join(siblings)}"
    if nearest:
        hint = f"did you mean '{nearest}'?"
    elif len(siblings) > MAX_LISTED:
        command = f"marl-ray explain {section}".strip()
        hint = f"`{command}` lists the known settings"
    return UserError(f"unknown setting '{prefix}{key}': {hint}")


def _nearest(name: str, siblings: list[str], every: list[str]) -> str | None:
    """Return the most similar dotted key, or None: the same name in any section, a section of this name, a name with
    these initials, similar spelling (in the same section first), or a name that contains the word."""
    for key in [*every, *sorted(sections(every))]:
        if _last(key) == name:
            return key
    for key in every:
        initials = [word[:1] for word in _last(key).split("_")]
        if "".join(initials) == name:
            return key
    # Spelling may differ most where the user was looking. The cutoffs are similarities of difflib from 0 to 1.
    for keys, cutoff in ((siblings, 0.7), (every, 0.85), (siblings, 0.5)):
        near = difflib.get_close_matches(name, map(_last, keys), n=1, cutoff=cutoff)
        for key in keys:
            if _last(key) in near:
                return key
    for key in every:
        if name in _last(key).split("_"):
            return key
    return None


def _last(key: str) -> str:
    """Return a dotted key without its sections."""
    return key.rpartition(".")[2]
