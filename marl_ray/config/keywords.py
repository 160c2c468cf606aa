"""Settings as keyword arguments of a Python function, with the names of the keys of a YAML file.

    train(model="a/b", num_turns=2, output={"run_name": "one"}, overrides={"resources.sandbox.workers": 4})

A keyword is a section or key of the top level, or else a key of the section `magrpo` or `grpo`. A text as `model` or
`dataset` is the section's `name`. A mapping is merged into the section.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from marl_ray.config.compat import aliases_in_section
from marl_ray.config.keys import sections, settings
from marl_ray.config.loader import Note, flatten, from_tree, to_tree
from marl_ray.config.schema import ALGORITHMS, Config
from marl_ray.config.values import read_yaml
from marl_ray.core.errors import UserError

ConfigSource = str | PathLike[str] | Mapping[str, Any] | Config
"""A YAML file, the nested mapping of such a file, or a config."""
NAMED = ("model", "dataset")
"""Sections that a text stands for, as their `name`."""


def from_keywords(
    source: ConfigSource | None,
    algorithm: str | None,
    keywords: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    note: Note = lambda line: None,
) -> Config:
    """Return the validated config of `source` with keywords, and with overrides by dotted key, which win over keywords.

    `algorithm` defaults to the section in the source, else magrpo. Without a source, `max_steps` alone sets the length
    of the run. Raises UserError.
    """
    tree = _tree(source)
    algorithm = algorithm_of(algorithm, tree, keywords)
    other = next(name for name in ALGORITHMS if name != algorithm)
    if other in tree:
        raise UserError(f"the config has a section '{other}', and algorithm is {algorithm}: leave out algorithm")
    given = flat_keywords(keywords, algorithm) | dict(overrides or {})
    if source is None and given.get(f"{algorithm}.max_steps") is not None:
        given.setdefault(f"{algorithm}.num_train_epochs", None)
    return from_tree(tree, algorithm, given, note)


def flat_keywords(keywords: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """Return the values of keywords by dotted key. Raises UserError for a misspelt section."""
    known = settings(algorithm)
    places = sections(known)
    top = set(aliases_in_section("", algorithm))
    """Names of the top level."""
    own = set(aliases_in_section(algorithm, algorithm))
    """Names in the section of the algorithm, which keywords may leave out."""
    for key in known:
        section, _, rest = key.partition(".")
        top.add(section)
        if section == algorithm:
            own.add(rest.partition(".")[0])
    flat: dict[str, Any] = {}
    for key, value in keywords.items():
        if key in NAMED and isinstance(value, str | PathLike):
            flat[f"{key}.name"] = fspath(value)
        elif key in places and value is not None:
            flat |= flatten(value, places, key)
        elif key in top:
            flat[key] = value
        else:
            # A name that is in neither is taken for one of the algorithm, unless it looks like one of the top level.
            near = difflib.get_close_matches(key, top, n=1, cutoff=0.75)
            if key not in own and near:
                raise UserError(f"unknown keyword '{key}': did you mean '{near[0]}'?")
            flat[f"{algorithm}.{key}"] = value
    return flat


def algorithm_of(given: str | None, tree: Mapping[str, Any], keywords: Mapping[str, Any]) -> str:
    """Return the algorithm: as given, else the section in the tree or among the keywords, else magrpo."""
    if given is None:
        for name in ALGORITHMS:
            if name in tree or name in keywords:
                return name
        return ALGORITHMS[0]
    if given not in ALGORITHMS:
        raise UserError(f"unknown algorithm {given!r}: there are {' and '.join(ALGORITHMS)}")
    return given


def _tree(source: ConfigSource | None) -> Mapping[str, Any]:
    if source is None:
        return {}
    if isinstance(source, Config):
        return to_tree(source)
    if isinstance(source, Mapping):
        return source
    if isinstance(source, str | PathLike):
        return read_yaml(Path(source))
    raise UserError(f"config should be a YAML file, a mapping or a config, got {source!r:.80}")
