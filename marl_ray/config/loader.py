"""From YAML, `--override` and the older flags to a checked `Config`, and back.

Order, later wins: defaults, the file, overrides, the older flags. On the way settings are flat, values by dotted key,
so that an override is one assignment. A key that does not exist is an error that names the nearest one that does,
wherever it came from. Other spellings are in `marl_ray.config.aliases`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml

from marl_ray.config.aliases import canonical_key, canonical_keys, canonical_values
from marl_ray.config.compat import compatible
from marl_ray.config.keys import AGENT_KEYS, agent_keys, mapping_of, refuse, sections, settings, types_of
from marl_ray.config.learning_rules import shared_policy
from marl_ray.config.parsing import read_yaml
from marl_ray.config.resources import GeneratorResources, LearnerResources
from marl_ray.config.schema import ALGORITHMS, AgentConfig, Config
from marl_ray.config.validation import check, count_agents, derive
from marl_ray.config.values import coerce, nullable
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize

Flat = dict[str, Any]
"""Values by dotted key; `agents` is a list of such, one an agent, or None."""


def load(
    path: str | Path,
    algorithm: str,
    overrides: Mapping[str, Any] | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> Config:
    """Read `path`, apply `overrides` (dotted key and value) and return the resolved, checked config.

    `note` hears, in a line each, what was made to fit. Raises UserError.
    """
    tree = read_yaml(Path(path))
    other = next(name for name in ALGORITHMS if name != algorithm)
    if algorithm not in tree and other in tree:
        raise UserError(f"{path} has a section '{other}': run it with python -m marl_ray.train_{other}")
    return from_tree(tree, algorithm, overrides, note)


def from_tree(
    tree: Mapping[str, Any],
    algorithm: str,
    overrides: Mapping[str, Any] | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> Config:
    """The same from nested dictionaries with the file's section names."""
    flat = _flat(tree, algorithm)
    overrides = overrides or {}
    for key in sorted(overrides, key=lambda key: key.startswith("agents.")):  # last, when their number is known
        _override(flat, key, overrides[key], algorithm)
    changed = {canonical_key(key, algorithm) for key in overrides}
    if f"{algorithm}.num_turns" in changed and f"{algorithm}.turn_gradient_weights" not in changed:
        _fit_weights(flat, algorithm, note)
    return _resolve(flat, algorithm)


def to_tree(config: Config) -> dict[str, Any]:
    """The resolved config with the file's section names; `from_tree` of it gives the same config.

    Of an agent it says what it was given as its own. All else remains the run's.
    """
    flat = {key: _plain(attrgetter(".".join(s.place))(config)) for key, s in settings(config.algorithm).items()}
    agents = []
    for agent in config.agents:
        own = _nested({key: attrgetter(key.removeprefix("resources."))(agent) for key in agent.given})
        agents.append(own["name"] if set(own) == {"name"} else own)
    flat["agents"] = agents if any(agents) else None
    return _nested(flat)


def to_yaml(config: Config) -> str:
    """The resolved config as YAML."""
    return yaml.safe_dump(to_tree(config), sort_keys=False)


def _flat(tree: Mapping[str, Any], algorithm: str) -> Flat:
    """A file's tree, every setting under the key that is kept."""
    flat = _kept(_flatten(tree, sections(settings(algorithm))), algorithm)
    flat["agents"] = _entries(flat.get("agents"), algorithm)
    return flat


def _kept(flat: Flat, algorithm: str) -> Flat:
    """Every setting under the key that is kept; two spellings of one may both be given if they mean the same."""

    def meant(key: str, value: Any) -> Any:
        try:
            return _typed({key: value}, algorithm).get(key)
        except UserError:  # it is refused under the key that is kept
            return value

    return canonical_keys(flat, algorithm, lambda key, one, other: one == other or meant(key, one) == meant(key, other))


def _flatten(value: Any, places: Collection[str], key: str = "") -> Flat:
    """What a section holds, by dotted key. What is none of `places` stays whole."""
    if key and key not in places:
        return {key: value}
    if isinstance(value, Mapping):
        flat: Flat = {}
        for name, inner in value.items():
            if "." in str(name):
                raise UserError(f"'{name}' with dots is for --override: in a file, write a section for every dot")
            flat |= _flatten(inner, places, f"{key}.{name}" if key else str(name))
        return flat
    return {} if value is None else {key: value}


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
    """The setting `agents`: a model's name or a mapping an agent."""
    if isinstance(agents, str) and agents.strip():  # a,b on a command line
        agents = [name.strip() for name in agents.split(",")]
    if agents is None:
        return None
    if not isinstance(agents, list | tuple):
        raise UserError(f"agents should be a list like [a, b], of names or of mappings, or null, got {agents!r}")
    places = sections(agent_keys(algorithm))
    return [_flatten(agent, places) if isinstance(agent, Mapping) else {"name": agent} for agent in agents]


def _override(flat: Flat, key: str, value: Any, algorithm: str) -> None:
    """Set one setting; a section is replaced as a whole."""
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
        inner = flat.get(mapping) or {}
        if not isinstance(inner, Mapping):
            raise UserError(f"{key}: '{mapping}' is a single value, not a section")
        flat[mapping] = {**inner, **_nested({key.removeprefix(f"{mapping}."): value})}
    else:
        _put(flat, key, _kept(_flatten(value, sections(settings(algorithm)), key), algorithm))


def _override_agent(flat: Flat, key: str, value: Any, algorithm: str) -> None:
    _, index, *rest = key.split(".", 2)
    if flat["agents"] is None:
        given = coerce(flat.get(f"{algorithm}.num_agents"), int | None, f"{algorithm}.num_agents")
        flat["agents"] = [{} for _ in range(count_agents(None, given, algorithm))]
    agents = flat["agents"]
    if not index.isdecimal() or int(index) >= len(agents):
        raise UserError(f"{key}: there {'is' if len(agents) == 1 else 'are'} {pluralize(len(agents), 'agent')}, from 0")
    if rest:
        _put(agents[int(index)], rest[0], _flatten(value, sections(agent_keys(algorithm)), rest[0]))
    else:
        (agents[int(index)],) = _entries([value], algorithm) or [{}]


def _put(flat: Flat, key: str, values: Flat) -> None:
    for old in [k for k in flat if k == key or k.startswith(f"{key}.")]:
        del flat[old]
    flat |= values


def _fit_weights(flat: Flat, algorithm: str, note: Callable[[str], None]) -> None:
    """Fewer turns were asked for than the file has weights for: the first weights stay."""
    weights, turns = (flat.get(f"{algorithm}.{name}") for name in ("turn_gradient_weights", "num_turns"))
    if isinstance(weights, list) and type(turns) is int and 1 <= turns < len(weights):
        flat[f"{algorithm}.turn_gradient_weights"] = weights[:turns]
        note(f"note: {algorithm}.num_turns is {turns}, so of turn_gradient_weights {weights} the first are used")


def _resolve(flat: Flat, algorithm: str) -> Config:
    """Convert all values, fill in all defaults, and check the whole."""
    known = settings(algorithm)
    for key, value in flat.items():
        if key not in known:
            refuse(key, value, known, algorithm)
    entries = flat["agents"]
    given = _typed({key: value for key, value in flat.items() if key != "agents"}, algorithm)
    alike = compatible(given.get("compat", known["compat"].default), given, entries, algorithm)
    run = {key: setting.default for key, setting in known.items()} | alike | given
    count = count_agents(entries, run[f"{algorithm}.num_agents"], algorithm)
    derive(run, algorithm)
    own = [_own(entry, number, algorithm) for number, entry in enumerate(entries or [{}] * count)]
    run["agents"] = tuple(_agent(run, own, number, algorithm) for number in range(count))
    places = {setting.place: run[key] for key, setting in known.items()}
    config = _assemble(Config, (), {**places, ("algorithm",): algorithm})
    check(config)
    return config


def _typed(flat: Flat, algorithm: str) -> Flat:
    """Every value as its setting's type, but for nulls that ask for the default."""
    known, typed = settings(algorithm), {}
    for key, value in canonical_values(flat, algorithm).items():
        if value is not None or not known[key].null_is_default:
            typed[key] = coerce(value, known[key].hint, key, or_null=known[key].null_is_default)
    return typed


def _own(entry: Flat, number: int, algorithm: str) -> Flat:
    """What an agent was given as its own, by the entry's keys."""
    keys, known = agent_keys(algorithm), settings(algorithm)
    for key, value in entry.items():
        if key not in keys:
            refuse(key, value, keys, algorithm, f"agents.{number}.")
    own = canonical_values({keys[key]: value for key, value in entry.items()}, algorithm)
    given = tuple(k for k in keys if k in entry and (own[keys[k]] is not None or nullable(known[keys[k]].hint)))
    return {key: coerce(own[keys[key]], known[keys[key]].hint, f"agents.{number}.{key}") for key in given}


def _agent(run: Flat, own: Sequence[Flat], number: int, algorithm: str) -> AgentConfig:
    """One agent: the run's settings, before them those of the first agent of its policy, and before them its own."""
    keys, known = agent_keys(algorithm), settings(algorithm)
    given = tuple(own[number])
    policy = shared_policy(own[number].get("policy", run[keys["policy"]]), number)
    first = {} if policy is None else own[policy]
    values = run | {keys[key]: value for key, value in (first | own[number]).items()} | {keys["policy"]: policy}
    places = {known[key].place: value for key, value in values.items()}
    return AgentConfig(
        **{field: values[key.format(algorithm=algorithm)] for field, key in AGENT_KEYS.items()},
        generator=_assemble(GeneratorResources, ("resources", "generator"), places),
        learner=_assemble(LearnerResources, ("resources", "learner"), places),
        given=given,
    )


def _assemble(cls: Any, place: tuple[str, ...], values: Mapping[tuple[str, ...], Any]) -> Any:
    """An instance of a section from the values of its fields, each under its place."""
    fields = {
        name: _assemble(hint, (*place, name), values) if dataclasses.is_dataclass(hint) else values[*place, name]
        for name, hint in types_of(cls).items()
    }
    return cls(**fields)


def _plain(value: Any) -> Any:
    """As YAML knows it."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple) else value
