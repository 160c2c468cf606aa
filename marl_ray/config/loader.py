"""Conversion of YAML files and overrides to a validated `Config`, and back.

Overrides (and command-line flags) win over the file, and the file over defaults. Settings are processed as a flat
mapping from dotted key to value, so that an override is one assignment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml

from marl_ray import registry
from marl_ray.config.agent_section import AgentConfig
from marl_ray.config.compat import canonical_key, canonical_keys, canonical_values
from marl_ray.config.dialects import DIALECTS, adopt, dialect_of
from marl_ray.config.keys import (
    agent_keys,
    agent_mapping_of,
    mapping_of,
    refuse,
    section_name,
    sections,
    settings,
    types_of,
    value_at,
)
from marl_ray.config.schema import ALGORITHMS, Config
from marl_ray.config.validation import check, count_agents, derive, shared_policy
from marl_ray.config.values import accepts_null, convert, read_yaml
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize
from marl_ray.registry import check_kinds, load_plug_ins

Flat = dict[str, Any]
"""Values by dotted key. `agents` is a list of such mappings, one per agent, or None."""
Note = Callable[[str], None]


def algorithm_of(path: str | Path) -> str:
    """Return the algorithm whose section the file at `path` has. Raises UserError."""
    return _algorithm_of_tree(read_yaml(Path(path)))


def _algorithm_of_tree(tree: Mapping[str, Any]) -> str:
    # A file of another program may train a single agent with its section grpo, as magrpo does here.
    is_grpo = "grpo" in tree and "magrpo" not in tree and dialect_of(tree) is None
    return "grpo" if is_grpo else "magrpo"


def load(
    path: str | Path, algorithm: str, overrides: Mapping[str, Any] | None = None, note: Note = lambda line: None
) -> Config:
    """Read the file at `path`, apply `overrides` (value by dotted key) and return the validated config. `note` receives
    a message per setting that was adapted to the others. Raises UserError."""
    tree = read_yaml(Path(path))
    other = next(name for name in ALGORITHMS if name != algorithm)
    if algorithm not in tree and other in tree and algorithm != _algorithm_of_tree(tree):
        raise UserError(f"{path} has a section '{other}': run it with python -m marl_ray.train_{other}")
    return from_tree(tree, algorithm, overrides, note)


def from_tree(
    tree: Mapping[str, Any], algorithm: str, overrides: Mapping[str, Any] | None = None, note: Note = lambda line: None
) -> Config:
    """Return the validated config of nested dictionaries with the section names of a file, or of a file of CoMLRL.
    Raises UserError."""
    overrides = overrides or {}
    load_plug_ins_of({**tree, **overrides})
    tree, overrides = adopt(tree, algorithm, overrides, note)
    flat = _canonical(flatten(tree, sections(settings(algorithm))), algorithm)
    flat["agents"] = _entries(flat.get("agents"), algorithm)
    # Settings of single agents come last, when the number of agents is known.
    for key in sorted(overrides, key=lambda key: key.startswith("agents.")):
        _override(flat, key, overrides[key], algorithm)
    changed = {canonical_key(key, algorithm) for key in overrides}
    if f"{algorithm}.num_turns" in changed and f"{algorithm}.turn_gradient_weights" not in changed:
        _truncate_weights(flat, algorithm, note)
    return _resolve(flat, algorithm)


def to_tree(config: Config) -> dict[str, Any]:
    """Return the config as nested dictionaries, the inverse of `from_tree`. Entries of `agents` contain only the
    settings that an agent sets itself."""
    flat: Flat = {}
    for key in settings(config.algorithm):
        flat[key] = _plain(value_at(config, key))
    flat[f"{config.algorithm}.num_agents"] = config.num_agents
    agents = [_entry_of(agent) for agent in config.agents]
    flat["agents"] = None
    if any(agents):
        flat["agents"] = agents
    return _nested(flat)


def _entry_of(agent: AgentConfig) -> str | dict[str, Any]:
    """Return the entry of `agents` that an agent was made of, in its short form if that says the same."""
    own: Flat = {}
    for key in agent.given:
        own[key] = attrgetter(key)(agent)
    if set(own) == {"name"}:
        name: str = own["name"]
        return name
    return _nested(own)


def to_yaml(config: Config) -> str:
    """Return the config as YAML."""
    return yaml.safe_dump(to_tree(config), sort_keys=False)


def load_plug_ins_of(tree: Mapping[str, Any]) -> None:
    """Load the plug-ins that a file names, with which its other keys are known. Raises UserError."""
    names = tree.get("plugins")
    if names is not None:
        load_plug_ins(convert(names, tuple[str, ...], "plugins"))
    check_kinds()


def _canonical(flat: Flat, algorithm: str) -> Flat:
    """Replace aliases of keys. A key and its alias may both be given if their values are equal after conversion."""

    def same(key: str, one: Any, other: Any) -> bool:
        try:
            return one == other or _convert_all({key: one}, algorithm) == _convert_all({key: other}, algorithm)
        except UserError:  # reported later, under the canonical key
            return False

    return canonical_keys(flat, algorithm, same)


def flatten(value: Any, places: Collection[str], key: str = "") -> Flat:
    """Return the settings of a section by dotted key. A value whose key is not in `places` is not flattened."""
    if key and key not in places:
        return {key: value}
    if isinstance(value, Mapping):
        flat: Flat = {}
        for name, inner in value.items():
            if "." in str(name):
                raise UserError(f"'{name}' with dots is for --override: in a file, write a section for every dot")
            flat |= flatten(inner, places, f"{key}.{name}".lstrip("."))
        return flat
    # An empty section is null in YAML, and sets nothing.
    if value is None:
        return {}
    return {key: value}


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parts, last = key.split(".")
        place = tree
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    return tree


def _entries(agents: Any, algorithm: str) -> list[Flat] | None:
    """Return the setting `agents` as one mapping per agent. An entry may also be the name of a model."""
    if isinstance(agents, str) and agents.strip():  # a,b on a command line
        agents = [name.strip() for name in agents.split(",")]
    if agents is None:
        return None
    if not isinstance(agents, list | tuple):
        raise UserError(f"agents should be a list like [a, b], of names or of mappings, or null, got {agents!r}")
    places = sections(agent_keys(algorithm))
    entries: list[Flat] = []
    for agent in agents:
        if isinstance(agent, Mapping):
            entries.append(flatten(agent, places))
        else:
            entries.append({"name": agent})
    return entries


def _override(flat: Flat, key: str, value: Any, algorithm: str) -> None:
    # The alias is the legacy flag --model_name, which names the model of every agent.
    if key == "model_name":
        for agent in flat["agents"] or ():
            agent.pop("name", None)
    key = canonical_key(key, algorithm)
    mapping = mapping_of(key, algorithm)
    if key == "agents":
        flat["agents"] = _entries(value, algorithm)
    elif key.startswith("agents."):
        _override_agent(flat, key, value, algorithm)
    elif mapping is not None:
        _override_entry(flat, mapping, key, value)
    else:
        _replace(flat, key, _canonical(flatten(value, sections(settings(algorithm)), key), algorithm))


def _override_agent(flat: Flat, key: str, value: Any, algorithm: str) -> None:
    _, index, *rest = key.split(".", 2)
    if flat["agents"] is None:
        given = convert(flat.get(f"{algorithm}.num_agents"), int | None, f"{algorithm}.num_agents")
        count = count_agents(None, given, algorithm)
        flat["agents"] = [{} for _ in range(count)]
    agents = flat["agents"]
    if not index.isdecimal() or int(index) >= len(agents):
        raise UserError(f"{key}: the config has {pluralize(len(agents), 'agent')}, numbered from 0")
    number = int(index)
    if not rest:
        agents[number] = (_entries([value], algorithm) or [{}])[0]
        return
    own = rest[0]
    mapping = agent_mapping_of(own, algorithm)
    if mapping is not None:
        _override_entry(agents[number], mapping, own, value)
    else:
        _replace(agents[number], own, flatten(value, sections(agent_keys(algorithm)), own))


def _override_entry(flat: Flat, mapping: str, key: str, value: Any) -> None:
    """Set the entry `key` of the setting `mapping`, whose other entries are kept."""
    inner = flat.get(mapping) or {}
    if not isinstance(inner, Mapping):
        raise UserError(f"{key}: '{mapping}' is a single value, not a section")
    flat[mapping] = {**inner, **_nested({key.removeprefix(f"{mapping}."): value})}


def _replace(flat: Flat, key: str, values: Flat) -> None:
    for old in list(flat):
        if old == key or old.startswith(f"{key}."):
            del flat[old]
    flat |= values


def _truncate_weights(flat: Flat, algorithm: str, note: Callable[[str], None]) -> None:
    """Keep only the first turn_gradient_weights if an override lowers num_turns below their number."""
    weights = flat.get(f"{algorithm}.turn_gradient_weights")
    turns = flat.get(f"{algorithm}.num_turns")
    # Values of other types are refused later, by their own checks. `type`, because True is an int.
    if isinstance(weights, list) and type(turns) is int and 1 <= turns < len(weights):
        flat[f"{algorithm}.turn_gradient_weights"] = weights[:turns]
        note(f"note: {algorithm}.num_turns is {turns}, so of turn_gradient_weights {weights} the first are used")


def _resolve(flat: Flat, algorithm: str) -> Config:
    known = settings(algorithm)
    for key, value in flat.items():
        if key not in known:
            refuse(key, value, known, algorithm)
    flat = dict(flat)
    entries = flat.pop("agents")
    given = _convert_all(flat, algorithm)
    dialect = DIALECTS.get(given.get("compat", known["compat"].default))
    run: Flat = {}
    for key, setting in known.items():
        run[key] = setting.default
    run |= dialect.defaults(given, entries or (), algorithm)
    run |= given
    for plug_in in registry.plug_ins():
        if plug_in.adapt:
            entries = registry.attribute(plug_in.adapt, "plug-in")(run, entries, algorithm)
    count = count_agents(entries, run[f"{algorithm}.num_agents"], algorithm)
    derive(run, entries or (), algorithm)
    own = [_convert_agent(entry, number, algorithm) for number, entry in enumerate(entries or [{}] * count)]
    run["agents"] = tuple(_agent(run, own, number, algorithm) for number in range(count))
    run[f"{algorithm}.num_agents"] = count
    # Fields of `Config` that are no settings of their own.
    run["algorithm"] = algorithm
    run["plugin_sections"] = {}
    for name, target in registry.sections().items():
        cls = registry.attribute(target, f"section {name}")
        run["plugin_sections"][name] = _section(cls, f"{name}.", run, algorithm)
    config: Config = _section(Config, "", run, algorithm)
    check(config)
    return config


def _convert_all(flat: Flat, algorithm: str) -> Flat:
    """Convert every value to the type of its setting, and drop nulls that stand for the default."""
    known = settings(algorithm)
    converted: Flat = {}
    for key, value in canonical_values(flat, algorithm).items():
        setting = known[key]
        if value is not None or not setting.null_is_default:
            converted[key] = convert(value, setting.hint, key, or_null=setting.null_is_default)
    return converted


def _convert_agent(entry: Flat, number: int, algorithm: str) -> Flat:
    """Return the settings that an entry of `agents` gives, converted, in the order of `agent_keys`."""
    keys = agent_keys(algorithm)
    known = settings(algorithm)
    of_run: Flat = {}
    """The same values under the keys of the run, which aliases of values are listed by."""
    for key, value in entry.items():
        if key not in keys:
            refuse(key, value, keys, algorithm, f"agents.{number}.")
        of_run[keys[key]] = value
    of_run = canonical_values(of_run, algorithm)
    converted: Flat = {}
    for key, run_key in keys.items():
        if key not in entry:
            continue
        value = of_run[run_key]
        hint = known[run_key].hint
        # null means "as in the run", except where it is a value.
        if value is not None or accepts_null(hint):
            converted[key] = convert(value, hint, f"agents.{number}.{key}")
    return converted


def _agent(run: Flat, own: Sequence[Flat], number: int, algorithm: str) -> AgentConfig:
    """Return one agent. Precedence: its own settings, settings of its policy's first agent, the run's settings."""
    keys = agent_keys(algorithm)
    policy = shared_policy(own[number].get("policy", run[keys["policy"]]), number)
    values: Flat = {}
    for key, run_key in keys.items():
        values[key] = run[run_key]
    if policy is not None:
        values |= own[policy]
    values |= own[number]
    values["policy"] = policy
    values["given"] = tuple(own[number])
    agent: AgentConfig = _section(AgentConfig, "", values, algorithm)
    return agent


def _section(cls: Any, prefix: str, values: Mapping[str, Any], algorithm: str) -> Any:
    """Return a section with the sections in it, from values by key."""
    fields = {}
    for name, hint in types_of(cls).items():
        if dataclasses.is_dataclass(hint):
            fields[name] = _section(hint, f"{prefix}{section_name(name, hint, algorithm)}.", values, algorithm)
        else:
            fields[name] = values[f"{prefix}{name}"]
    return cls(**fields)


def _plain(value: Any) -> Any:
    """Return a value as YAML writes it: mappings as dictionaries, tuples as lists."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return list(map(_plain, value))
    return value
