"""Under which dotted key of a file each setting stands, and which one a person may have meant.

The file's sections `magrpo` and `grpo` are one flat list; resolved, it is five sections and the agents' own settings.
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

from marl_ray.config.aliases import NULL_IS_DEFAULT, aliases_in_section, refuse_reference
from marl_ray.config.resources import GeneratorResources, LearnerResources
from marl_ray.config.schema import Config
from marl_ray.core.errors import UserError

FLAT = ("rollout", "credit", "optimizer", "evaluation", "loop")
"""Sections whose settings stand in the file's section `magrpo` or `grpo`."""
AGENT_KEYS = {
    "name": "model.name",
    "temperature": "model.temperature",
    "top_p": "model.top_p",
    "dtype": "model.model_kwargs.torch_dtype",
    "learning_rate": "{algorithm}.learning_rate",
    "max_new_tokens": "{algorithm}.max_new_tokens",
    "reference_kl_coef": "{algorithm}.reference_kl_coef",
    "estimator": "{algorithm}.estimator",
    "policy": "{algorithm}.policy",
}
"""An agent's settings, and the run's of the same meaning. Its `resources` are called alike in both."""
DERIVED = {
    "agents": None,
    "environment": None,
    "dataset.type": None,
    "{algorithm}.num_agents": None,
    "{algorithm}.estimator": None,
    "{algorithm}.turn_gradient_weights": None,
}
"""Settings that are made from other settings, and what is written for it, which is their default."""
MANY = 15
"""More known settings than this are not listed in an error."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its type and default, and the field it becomes: `place` is the way to it from a Config.

    `null_is_default`: null is no value of the type, but may be given for the default.
    """

    hint: Any
    default: Any
    owner: type
    place: tuple[str, ...]
    null_is_default: bool


@functools.cache
def settings(algorithm: str) -> Mapping[str, Setting]:
    """Every setting by its key in a file. `agents` and `num_agents`, which become one field, are among them."""
    return dict(_walk(Config, (), algorithm)) | {
        f"{algorithm}.num_agents": Setting(int, None, Config, ("num_agents",), null_is_default=True)
    }


@functools.cache
def types_of(cls: Any) -> Mapping[str, Any]:
    """The type of each field, bounds included."""
    return typing.get_type_hints(cls, include_extras=True)


def _walk(cls: type, place: tuple[str, ...], algorithm: str) -> Iterator[tuple[str, Setting]]:
    hints = types_of(cls)
    for field in dataclasses.fields(cls):
        here = (*place, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _walk(hints[field.name], here, algorithm)
        elif here != ("algorithm",):
            key = _key(here, algorithm)
            derived = {k.format(algorithm=algorithm): word for k, word in DERIVED.items()}
            null = [k for k, word in derived.items() if word is None]
            null += [k.format(algorithm=algorithm) for k in NULL_IS_DEFAULT]
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            yield key, Setting(hints[field.name], derived.get(key, default), cls, here, key in null)


def _key(place: tuple[str, ...], algorithm: str) -> str:
    if place[0] == "defaults":
        return AGENT_KEYS[place[1]].format(algorithm=algorithm)
    return ".".join((algorithm, *place[1:]) if place[0] in FLAT else place)


@functools.cache
def agent_keys(algorithm: str) -> Mapping[str, str]:
    """The keys of one entry of `agents`, and the run's keys that hold for agents without them."""
    own = {key: run.format(algorithm=algorithm) for key, run in AGENT_KEYS.items()}
    for part, cls in (("generator", GeneratorResources), ("learner", LearnerResources)):
        own |= {key: key for field in dataclasses.fields(cls) for key in [f"resources.{part}.{field.name}"]}
    return own


def sections(keys: Iterable[str]) -> set[str]:
    """Every section that holds one of these keys."""
    return {key[:i] for key in keys for i, letter in enumerate(key) if letter == "."}


def mapping_of(key: str, algorithm: str) -> str | None:
    """The setting that holds a mapping with entries of any name, where a dotted key is one of its entries."""
    for name, setting in settings(algorithm).items():
        if key.startswith(f"{name}.") and typing.get_origin(setting.hint) is collections.abc.Mapping:
            return name
    return None


def refuse(key: str, value: Any, known: Iterable[str], algorithm: str, where: str = "") -> NoReturn:
    """Raise UserError for a dotted key that is not `known`: it names the nearest setting there is.

    `where` is said before all of them: `agents.0.` for an agent's.
    """
    places = sections(known)
    if key in places:
        raise UserError(f"'{where}{key}' should be a section with settings, got {value!r}")
    parts = key.split(".")
    for end in range(1, len(parts) + 1):
        at = ".".join(parts[:end])
        if at in known:
            raise UserError(f"{where}{key}: '{parts[end - 1]}' is a single value, not a section")
        if at not in places:
            raise _unknown(at, known, algorithm, where)
    raise AssertionError(key)


def _unknown(key: str, known: Iterable[str], algorithm: str, where: str) -> UserError:
    section, _, name = key.rpartition(".")
    prefix = f"{section}." if section else ""
    refuse_reference(name, where + prefix)
    here = list(dict.fromkeys(k[len(prefix) :].split(".")[0] for k in known if k.startswith(prefix)))
    spelt = [where + prefix + n for n in (here if where else [*here, *aliases_in_section(section, algorithm)])]
    every = [*(f"{where}{k}" for k in known if where), *settings(algorithm)]
    hint = _nearest(name, spelt, every)
    if hint is not None:
        return UserError(f"unknown setting '{where}{key}': did you mean '{hint}'?")
    if len(here) > MANY:
        command = f"marl-ray explain {section}".strip()
        return UserError(f"unknown setting '{where}{key}': the known ones are listed by {command}")
    return UserError(f"unknown setting '{where}{key}': known here: {', '.join(here)}")


def _nearest(name: str, here: list[str], every: list[str]) -> str | None:
    """The dotted key a person most likely means: one called so in any section, one with these initials, one that is
    spelt alike, in the section's own (`here`) sooner than elsewhere, one with this word."""
    last = {key: key.rpartition(".")[2] for key in [*every, *here]}

    def alike(keys: list[str], cutoff: float) -> list[str]:
        near = difflib.get_close_matches(name, [last[key] for key in keys], n=1, cutoff=cutoff)
        return [key for key in keys if last[key] in near]

    ways = (
        [key for key in every if last[key] == name],
        [key for key in every if "".join(word[0] for word in last[key].split("_")) == name],
        alike(here, 0.7) or alike(every, 0.85) or alike(here, 0.5),
        [key for key in every if name in last[key].split("_")],
    )
    return next((found[0] for found in ways if found), None)
