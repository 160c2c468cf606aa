"""Descriptions of settings: the text of `marl-ray explain`, and the JSON Schema of a config file."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from typing import Any

from marl_ray import registry, toy
from marl_ray.config.algorithm_section import AlgorithmConfig
from marl_ray.config.compat import KL_SWITCH, canonical_key, key_aliases, value_aliases
from marl_ray.config.dialects import DIALECTS
from marl_ray.config.keys import Setting, agent_keys, mapping_of, refuse, sections, settings
from marl_ray.config.schema import ALGORITHMS, Config
from marl_ray.config.validation import PLUGINS
from marl_ray.config.values import describe, json_schema_of
from marl_ray.registry import MODULE_ATTRIBUTE

SENTENCE_END = re.compile(r"(?<!Dr\.)(?<=[^.][.])\s")
"""Space after a full stop that ends a sentence, not after an ellipsis or a title."""
AGENTS = "a list like [a, b] or [{name: a}, {name: b, learning_rate: 1e-5}], or null"


def explain(key: str, algorithm: str) -> list[str]:
    """Return lines with the type, default and description of a setting.

    For a section, return one line per setting; for "", one line per section. Settings of an agent are `agents.KEY` or,
    as in overrides, `agents.0.KEY`. Raises UserError that names the nearest known setting.
    """
    known = settings(algorithm)
    if not key:
        return _explain_all(known)
    canonical = canonical_key(key, algorithm)
    if canonical == "agents" or canonical.startswith("agents."):
        return _explain_agents(canonical, algorithm)
    if canonical in known:
        lines = _explain_setting(canonical, algorithm)
        if canonical != key:
            lines.insert(0, f"{key} is an alias of {canonical}")
        return lines
    if canonical in sections(known):
        lines = [f"{canonical}: {describe_section(canonical)}"]
        for name in known:
            if name.startswith(f"{canonical}."):
                lines.append(_summary(name, known))
        return lines
    mapping = mapping_of(canonical, algorithm)
    if mapping is not None:
        return [f"{canonical} is an entry of {mapping}", *explain(mapping, algorithm)]
    refuse(canonical, None, known, algorithm)


def _explain_all(known: Mapping[str, Setting]) -> list[str]:
    """Return a line per section, and per setting of the top level."""
    places = sections(known)
    lines: list[str] = []
    for name in dict.fromkeys(key.partition(".")[0] for key in known):
        if name in places:
            lines.append(f"{name}: {describe_section(name)}")
        else:
            lines.append(_summary(name, known))
    return lines


def _explain_setting(key: str, algorithm: str) -> list[str]:
    setting = settings(algorithm)[key]
    header = f"{key}: {describe_type(key, setting, algorithm)}; default {as_yaml(setting.default)}"
    lines = [header, describe_setting(key, setting)]
    if key == "compat":
        # With a coefficient, because some defaults depend on whether there is a KL term.
        for name in DIALECTS.entries:
            defaults = DIALECTS.get(name).defaults({f"{algorithm}.reference_kl_coef": 1.0}, (), algorithm)
            for changed, value in defaults.items():
                lines.append(f"{name}: {changed} {as_yaml(value)}")
        return lines
    for own, of_run in agent_keys(algorithm).items():
        if of_run == key:
            lines.append(f"agents.N.{own} sets it for one agent.")
    return lines


def _explain_agents(key: str, algorithm: str) -> list[str]:
    keys = agent_keys(algorithm)
    if key == "agents":
        lines = [f"agents: {AGENTS}; default null", describe_setting(key, settings(algorithm)[key])]
        return [*lines, *_keys_of_agent(keys)]
    if re.fullmatch(r"agents\.(\d+|N)", key):
        return [f"{key} is one entry of agents", *explain("agents", algorithm)]
    own = re.sub(r"^agents\.((\d+|N)\.)?", "", key)
    if own in keys:
        header = f"{key} is {keys[own]} of one agent; agents that omit it have the value of {keys[own]}"
        return [header, *explain(keys[own], algorithm)[:2]]
    if own in sections(keys):
        return _keys_of_agent({k: run for k, run in keys.items() if k.startswith(f"{own}.")})
    refuse(own, None, keys, algorithm, "agents.")


def _keys_of_agent(keys: Mapping[str, str]) -> list[str]:
    return [f"agents.{own}: {of_run} of one agent" for own, of_run in keys.items()]


def describe_type(key: str, setting: Setting, algorithm: str) -> str:
    """Return the type and bounds of a setting, or the names of the plug-ins to choose from."""
    names = _plugins(key, algorithm)
    if names:
        text = f"{', '.join(names)}, or module:Attr of a plug-in"
        return f"{text}, or null" if setting.null_is_default else text
    hint = setting.hint
    if setting.null_is_default:
        hint = hint | None
    return describe(hint)


def _plugins(key: str, algorithm: str) -> list[str]:
    """Return the names of the plug-ins that a setting chooses from; none for other settings."""
    for template, names in PLUGINS.items():
        if template.format(algorithm=algorithm) == key:
            return list(names.entries)
    return []


def describe_setting(key: str, setting: Setting) -> str:
    """Return the description of a setting: the docstring of its field, and the bundled sets or models."""
    name = key.rpartition(".")[2]
    text = " ".join(json_schema_of(setting.owner)["properties"][name]["description"].split())
    bundled: list[str] = []
    if key == "dataset.name":
        bundled = [*toy.ROWS, *registry.bundled_rows()]
    elif key == "model.name":
        bundled = [*toy.MODELS, *registry.bundled_models()]
    if bundled:
        text += f" Bundled: {', '.join(f'`{name}`' for name in bundled)}."
    return text


def describe_section(key: str) -> str:
    """Return the description of a section: the docstring of its class."""
    if key in ALGORITHMS:
        return inspect.getdoc(AlgorithmConfig) or ""
    first, *rest = key.split(".")
    cls: Any = _section_of(Config, first)
    if cls is None:
        cls = registry.attribute(registry.sections()[first], f"section {first}")
    for name in rest:
        cls = _section_of(cls, name)
    return " ".join((inspect.getdoc(cls) or "").split())


def _section_of(cls: Any, name: str) -> Any:
    """Return the class of the section that is a field of another, None if there is none of this name."""
    for field in dataclasses.fields(cls):
        if field.name == name:
            return field.default_factory
    return None


def as_yaml(value: Any) -> str:
    """Return a default as it is written in YAML."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(as_yaml, value))}]"
    # By identity, because 0 and 1 equal False and True.
    for constant, word in ((None, "null"), (True, "true"), (False, "false")):
        if value is constant:
            return word
    return str(value) or '""'


def _summary(key: str, known: Mapping[str, Setting]) -> str:
    setting = known[key]
    first, *_ = SENTENCE_END.split(describe_setting(key, setting))
    return f"{key} [{as_yaml(setting.default)}]: {first}"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a config file, with types, bounds, defaults and descriptions of all keys."""
    root: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "marl_ray config"}
    root |= _object(inspect.getdoc(Config) or "")
    for algorithm in ALGORITHMS:
        for key, setting in settings(algorithm).items():
            _insert(root, key, _schema_of(key, setting, algorithm))
        for alias, key in key_aliases(algorithm).items():
            schema = _schema_of(key, settings(algorithm)[key], algorithm)
            schema |= {"description": f"Alias of {key}.", "deprecated": True}
            _insert(root, alias, schema)
        switch = {"type": ["boolean", "null"], "description": "Alias of reference_kl_coef 0.1 or 0."}
        _insert(root, KL_SWITCH.format(algorithm=algorithm), switch | {"deprecated": True})
    agent = _object("Settings of one agent. Omitted settings have the run's values.")
    for own, key in agent_keys("magrpo").items():
        _insert(agent, own, _schema_of(key, settings("magrpo")[key], "magrpo"))
    entries = {"type": "array", "items": {"anyOf": [{"type": "string"}, agent]}}
    root["properties"]["agents"] |= {"anyOf": [entries, {"type": "null"}]}
    return root


def _object(description: str) -> dict[str, Any]:
    return {"type": ["object", "null"], "description": description, "additionalProperties": False, "properties": {}}


def _insert(root: dict[str, Any], key: str, schema: Mapping[str, Any]) -> None:
    *parents, name = key.split(".")
    for number, parent in enumerate(parents, 1):
        root = root["properties"].setdefault(parent, _object(describe_section(".".join(parents[:number]))))
    root["properties"][name] = dict(schema)


def _schema_of(key: str, setting: Setting, algorithm: str) -> dict[str, Any]:
    names = _plugins(key, algorithm)
    options: list[Any] = []
    if key == "agents":
        # The type of agents in a file is that of their entries, which the caller inserts.
        options.append({})
    elif names:
        options.append({"enum": names})
        options.append({"type": "string", "pattern": f"^{MODULE_ATTRIBUTE.pattern}$"})
    else:
        options.append(json_schema_of(setting.hint))
    aliases = value_aliases(algorithm).get(key)
    if aliases:
        options.append({"enum": list(aliases)})
    if setting.null_is_default:
        options.append({"type": "null"})
    schema: dict[str, Any] = {"anyOf": options}
    if len(options) == 1:
        schema = dict(options[0])
    schema["default"] = setting.default
    if isinstance(setting.default, tuple):
        schema["default"] = list(setting.default)
    schema["description"] = describe_setting(key, setting)
    return schema
