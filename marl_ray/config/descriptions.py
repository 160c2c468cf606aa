"""What a setting means, its type and its default, from the fields' own docstrings."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any

from marl_ray.config.aliases import canonical_key
from marl_ray.config.compat import compatible
from marl_ray.config.keys import agent_keys, mapping_of, refuse, sections, settings
from marl_ray.config.schema import Config
from marl_ray.config.validation import PLUGINS
from marl_ray.config.values import describe

SENTENCE = re.compile(r"(?<!Dr\.)(?<=[^.][.])\s")
"""Where a sentence ends: a full stop that is not the last of several, nor of a title."""
FLAT_SECTION = "How episodes are played and learned from."


def explain(key: str, algorithm: str) -> list[str]:
    """A setting's key, type, default and meaning; of a section, its settings, one a line; of "", all sections.

    An agent's setting is `agents.KEY` or, as in an override, `agents.0.KEY`. Raises UserError that names the nearest
    setting there is.

    Example:
        >>> explain("magrpo.discount", "magrpo")[0]
        'magrpo.discount: a number that should not be negative and be at most 1; default 1.0'
    """
    known = settings(algorithm)
    if not key:
        every = dict.fromkeys(k.partition(".")[0] for k in known)
        return [_of_section(k, algorithm) if k in sections(known) else _line(k, known) for k in every]
    kept = canonical_key(key, algorithm)
    lines = [f"{key} is an older spelling: {kept} is kept"] if kept != key else []
    if kept == "agents":
        return [
            "agents: a list like [a, b] or [{name: a}, {name: b, learning_rate: 1e-5}], or null; default null",
            _of_setting(kept, known),
            *(f"agents.{own}: one agent's {run}" for own, run in agent_keys(algorithm).items()),
        ]
    if kept.startswith("agents."):
        return _explain_agents(kept, algorithm)
    if kept in known:
        setting = known[kept]
        kind = describe(setting.hint | None if setting.null_is_default else setting.hint, bounds=True)
        names = next((r.entries for k, r in PLUGINS.items() if k.format(algorithm=algorithm) == kept), None)
        if names is not None:
            kind = f"{', '.join(names)}, or module:Attr of one's own" + (", or null" if setting.null_is_default else "")
        own = [f"agents.N.{own} is one agent's." for own, run in agent_keys(algorithm).items() if run == kept]
        if kept == "compat":
            own = [f"comlrl: {key} {_written(value)}" for key, value in _of_comlrl(algorithm).items()]
        return [*lines, f"{kept}: {kind}; default {_written(setting.default)}", _of_setting(kept, known), *own]
    if kept in sections(known):
        return [_of_section(kept, algorithm), *(_line(k, known) for k in known if k.startswith(f"{kept}."))]
    mapping = mapping_of(kept, algorithm)
    if mapping is not None:
        return [f"{kept} is an entry of {mapping}", *explain(mapping, algorithm)]
    refuse(kept, None, known, algorithm)


def _explain_agents(key: str, algorithm: str) -> list[str]:
    """The run's setting of the same meaning says what there is to say."""
    keys = agent_keys(algorithm)
    if re.fullmatch(r"agents\.(\d+|N)", key):
        return [f"{key} is one entry of agents", *explain("agents", algorithm)]
    own = re.sub(r"^agents\.((\d+|N)\.)?", "", key)
    if own in keys:
        run = explain(keys[own], algorithm)[:2]
        return [f"{key} is one agent's {keys[own]}, which holds for agents without it", *run]
    if own in sections(keys):
        return [f"agents.{k}: one agent's {run}" for k, run in keys.items() if k.startswith(f"{own}.")]
    refuse(own, None, keys, algorithm, "agents.")


def _of_comlrl(algorithm: str) -> Mapping[str, Any]:
    """What it sets in a run that has a reference policy."""
    return compatible("comlrl", {f"{algorithm}.reference_kl_coef": 1.0}, None, algorithm)


def _line(key: str, known: Mapping[str, Any]) -> str:
    return f"{key} [{_written(known[key].default)}]: {SENTENCE.split(_of_setting(key, known))[0]}"


def _of_setting(key: str, known: Mapping[str, Any]) -> str:
    owner, name = known[key].owner, known[key].place[-1]
    return " ".join(docstrings(owner)[name].split())


def _of_section(key: str, algorithm: str) -> str:
    """What its class says of it."""
    if key == algorithm:
        return f"{key}: {FLAT_SECTION}"
    cls: Any = Config
    for name in key.split("."):
        cls = next(field.default_factory for field in dataclasses.fields(cls) if field.name == name)
    return f"{key}: {' '.join((inspect.getdoc(cls) or '').split())}"


def _written(value: Any) -> str:
    """A default as it would be written."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value) if value != "" else '""'


@functools.cache
def docstrings(cls: type) -> Mapping[str, str]:
    """The docstring of each field and property of a class, by name, those of its bases included.

    A field's is the text below it, which Python itself does not keep.
    """
    found = dict(docstrings(cls.__base__)) if cls.__base__ not in (None, object) else {}
    (node,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(node, ast.ClassDef)
    for field, text in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = ast.literal_eval(text.value)
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            found[item.name] = ast.get_docstring(item) or ""
    return found
