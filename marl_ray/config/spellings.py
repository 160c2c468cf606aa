"""Other spellings of a setting, by key and by value, and settings that have a name but are not there yet.

In the tables `{algorithm}` stands for the section `magrpo` or `grpo`.
"""

from __future__ import annotations

import re
from typing import Any

from marl_ray.config.schema import ConfigError

SAME_SETTING = {
    "{algorithm}.external_original_prompt": "external.original_prompt",
    "{algorithm}.external_previous_response": "external.previous_response",
    "{algorithm}.temperature": "model.temperature",
    "{algorithm}.top_p": "model.top_p",
    "{algorithm}.top_k": "model.top_k",
    "{algorithm}.agent_learning_rate": "{algorithm}.learning_rate",
    "{algorithm}.advantage_normalization": "{algorithm}.normalize_advantages",
    "{algorithm}.advantage_mode": "{algorithm}.estimator",
    "{algorithm}.reward_shift": "reward_processor.shift",
    "reward_shift": "reward_processor.shift",
    "model_name": "model.name",
}
"""Other keys, and the one that is kept."""

SAME_VALUE: dict[str, dict[Any, Any]] = {
    "{algorithm}.joint_mode": {"align": "aligned"},
    "{algorithm}.estimator": {"mean": "magrpo", "rloo": "marloo", "max": "maremax", "raw": "mareinforce"},
    "model.top_k": {0: None, -1: None},
    "reward_processor.shift": {None: 0.0},
    "reward_processor.scale_factor": {None: 1.0},
}
"""Other values of a kept key (texts in lower case), and the one that is kept."""

_REFERENCE_KL = re.compile(r"beta|(.+_)?(kl|ref|reference)(_.+)?")
"""How settings of a KL term to a reference policy are called."""


def kept_key(key: str, algorithm: str) -> str:
    """The spelling of a dotted key that is kept."""
    for other, kept in SAME_SETTING.items():
        if key == other.format(algorithm=algorithm):
            return kept.format(algorithm=algorithm)
    return key


def other_names(section: str, algorithm: str) -> list[str]:
    """The other spellings within a section ("" is the top level)."""
    places = [other.format(algorithm=algorithm).rpartition(".") for other in SAME_SETTING]
    return [name for place, _, name in places if place == section]


def one_spelling(tree: dict[str, Any], algorithm: str) -> dict[str, Any]:
    """A copy of the tree with every setting under the key and the value that are kept. Raises ConfigError.

    A setting that asks for no KL term (0, null, false) is left out: that is what happens anyway.
    """
    tree = {key: dict(value) if isinstance(value, dict) else value for key, value in tree.items()}
    for other in SAME_SETTING:
        _move(tree, other.format(algorithm=algorithm), kept_key(other.format(algorithm=algorithm), algorithm))
    for key, values in SAME_VALUE.items():
        section, name = key.format(algorithm=algorithm).split(".")
        place = tree.get(section)
        if isinstance(place, dict) and name in place:
            place[name] = _kept_value(place[name], values)
    place = tree.get(algorithm)
    if isinstance(place, dict):
        for name in [n for n, v in place.items() if not v and _REFERENCE_KL.fullmatch(str(n))]:
            del place[name]
    return tree


def refuse_planned(name: str, where: str) -> None:
    """Raise ConfigError for an unknown setting that is known to be missing."""
    if _REFERENCE_KL.fullmatch(name):
        raise ConfigError(
            f"{where}{name}: a KL term to a reference policy is not available yet: leave it out, or set it to 0"
        )


def _move(tree: dict[str, Any], other: str, kept: str) -> None:
    section, _, name = other.rpartition(".")
    place = tree.get(section) if section else tree
    if not isinstance(place, dict) or name not in place:
        return
    value = place.pop(name)
    if value is None:
        return
    kept_section, kept_name = kept.split(".")
    target = tree.get(kept_section)
    if target is None:
        target = tree[kept_section] = {}
    if not isinstance(target, dict):
        raise ConfigError(f"{kept}: '{kept_section}' is a single value, not a section")
    if name != "model_name" and target.get(kept_name) not in (None, value):
        raise ConfigError(f"{other} and {kept} are the same setting and differ: give one of them")
    target[kept_name] = value


def _kept_value(value: Any, values: dict[Any, Any]) -> Any:
    if isinstance(value, bool | list | dict):
        return value
    return values.get(value.lower() if isinstance(value, str) else value, value)
