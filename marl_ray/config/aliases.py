"""Other spellings of a setting, by key and by value, and settings that others spell in ways that mean too many things.

In the tables `{algorithm}` stands for the section `magrpo` or `grpo`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from marl_ray.core.errors import UserError

KEY_ALIASES = {
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

VALUE_ALIASES: dict[str, dict[Any, Any]] = {
    "{algorithm}.joint_mode": {"align": "aligned"},
    "{algorithm}.estimator": {"mean": "magrpo", "rloo": "marloo", "max": "maremax", "raw": "mareinforce"},
    "model.top_k": {0: None, -1: None},
    "external.sandbox_slice": {None: "all"},
}
"""Other values of a kept key (texts in lower case), and the one that is kept."""

NAMES = ("environment", "dataset.type", "external.mode", "{algorithm}.estimator")
"""Settings whose values are names, in lower case, or module:Attr."""

NULL_IS_DEFAULT = (
    "{algorithm}.learning_rate",
    "{algorithm}.reference_kl_coef",
    "reward_processor.scale_factor",
    "reward_processor.shift",
)
"""Settings for which null is another word for the default."""

_REFERENCE_KL = re.compile(r"beta|(.+_)?(kl|ref|reference)(_.+)?")
"""How settings of a KL term to a reference policy are called."""
_KL_SWITCH = "{algorithm}.reference_kl_enabled"
"""CoMLRL's: false is a coefficient of 0, whatever else is given; true one of COMLRL_KL_COEF, unless one is given."""
COMLRL_KL_COEF = 0.1


def canonical_key(key: str, algorithm: str) -> str:
    """The spelling of a dotted key that is kept."""
    for other, kept in KEY_ALIASES.items():
        if key == other.format(algorithm=algorithm):
            return kept.format(algorithm=algorithm)
    return key


def aliases_in_section(section: str, algorithm: str) -> list[str]:
    """The other spellings within a section ("" is the top level)."""
    places = [other.format(algorithm=algorithm).rpartition(".") for other in KEY_ALIASES]
    return [name for place, _, name in places if place == section]


def canonical_keys(flat: Mapping[str, Any], algorithm: str, same: Callable[[str, Any, Any], bool]) -> dict[str, Any]:
    """Values by dotted key, each under the key that is kept. Raises UserError where two spellings differ.

    `same` says whether two values of a kept key mean the same.

    A setting of another name that asks for no KL term (0, null, false) is left out: that is what happens anyway.
    """
    kept = {}
    flat = _switched(flat, algorithm)
    for key, value in flat.items():
        place, _, name = key.rpartition(".")
        other_kl = place == algorithm and name != "reference_kl_coef" and _REFERENCE_KL.fullmatch(name)
        if canonical_key(key, algorithm) == key and not (other_kl and not value):
            kept[key] = value
    for other in (other.format(algorithm=algorithm) for other in KEY_ALIASES):
        if flat.get(other) is None:
            continue
        key, value = canonical_key(other, algorithm), flat[other]
        if other != "model_name" and kept.get(key) is not None and not same(key, kept[key], value):
            raise UserError(f"{other} and {key} are the same setting and differ: give one of them")
        kept[key] = value
    return kept


def _switched(flat: Mapping[str, Any], algorithm: str) -> Mapping[str, Any]:
    """CoMLRL's switch of the KL term as a coefficient. Raises UserError where it is neither on nor off."""
    switch, coefficient = _KL_SWITCH.format(algorithm=algorithm), f"{algorithm}.reference_kl_coef"
    if flat.get(switch) is None:
        return flat
    if not isinstance(flat[switch], bool):
        raise UserError(f"{switch} should be true or false, got {flat[switch]!r}: or set {coefficient} alone")
    given = {key: value for key, value in flat.items() if key != switch}
    return {coefficient: COMLRL_KL_COEF} | given if flat[switch] else given | {coefficient: 0.0}


def canonical_values(flat: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """Values by kept key, each spelt as it is kept."""
    kept = dict(flat)
    for key in (key.format(algorithm=algorithm) for key in NAMES):
        if isinstance(kept.get(key), str) and ":" not in kept[key]:
            kept[key] = kept[key].lower()
    for key, values in VALUE_ALIASES.items():
        key = key.format(algorithm=algorithm)
        if key in kept and not isinstance(kept[key], bool | list | dict):
            value = kept[key].lower() if isinstance(kept[key], str) else kept[key]
            kept[key] = values.get(value, kept[key])
    return kept


def refuse_reference(name: str, where: str) -> None:
    """Raise UserError for an unknown setting that goes by other names here."""
    if _REFERENCE_KL.fullmatch(name):
        raise UserError(
            f"unknown setting '{where}{name}': the KL term to the reference policy has its size in reference_kl_coef, "
            "its place in reference_kl, and its memory in resources.learner.offload_reference"
        )
