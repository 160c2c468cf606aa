"""Old and other spellings: aliases of keys and of values.

`{algorithm}` in the tables stands for the section `magrpo` or `grpo`.
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
"""Canonical key by alias."""

VALUE_ALIASES: dict[str, dict[Any, Any]] = {
    "{algorithm}.joint_mode": {"align": "aligned"},
    "{algorithm}.estimator": {"mean": "magrpo", "rloo": "marloo", "max": "maremax", "raw": "mareinforce"},
    "{algorithm}.loss": {"ppo": "clip", "reinforce": "policy_gradient"},
    "model.top_k": {0: None, -1: None},
    "external.sandbox_slice": {None: "all"},
}
"""Canonical value by alias, per canonical key. Aliases that are text are matched in any case."""

PLUGIN_NAMES = ("compat", "environment", "dataset.type", "external.mode", "{algorithm}.estimator")
"""Settings whose values are names of plug-ins, in any case, or module:Attr."""

KL_SWITCH = "{algorithm}.reference_kl_enabled"
"""CoMLRL's switch of the KL term. false sets reference_kl_coef to 0; true sets it to COMLRL_KL_COEF unless given."""
COMLRL_KL_COEF = 0.1
KL_SETTINGS = ("reference_kl_coef", "reference_model")
"""Settings of the KL term that may be 0 or null."""
_REFERENCE_KL = re.compile(r"beta|(.+_)?(kl|ref|reference)(_.+)?")
"""Names that other libraries use for settings of the KL term."""


def canonical_key(key: str, algorithm: str) -> str:
    """Return the canonical spelling of a dotted key."""
    aliases = {alias.format(algorithm=algorithm): canonical for alias, canonical in KEY_ALIASES.items()}
    return aliases[key].format(algorithm=algorithm) if key in aliases else key


def aliases_in_section(section: str, algorithm: str) -> list[str]:
    """Return the names of the aliases in a section ("" is the top level)."""
    places = [alias.format(algorithm=algorithm).rpartition(".") for alias in KEY_ALIASES]
    return [name for place, _, name in places if place == section]


def canonical_keys(flat: Mapping[str, Any], algorithm: str, same: Callable[[str, Any, Any], bool]) -> dict[str, Any]:
    """Return values by dotted key with every alias replaced by its canonical key.

    `same(key, a, b)` tells whether two values of a canonical key are equal after conversion. Raises UserError if a key
    and its alias are both given with different values. Unknown settings of the KL term that disable it (0, null, false)
    are dropped.
    """
    canonical, flat = {}, _resolve_kl_switch(flat, algorithm)
    for key, value in flat.items():
        place, _, name = key.rpartition(".")
        unknown_kl = place == algorithm and name not in KL_SETTINGS and _REFERENCE_KL.fullmatch(name)
        if canonical_key(key, algorithm) == key and not (unknown_kl and not value):
            canonical[key] = value
    for alias in (alias.format(algorithm=algorithm) for alias in KEY_ALIASES):
        if flat.get(alias) is None:
            continue
        key, value = canonical_key(alias, algorithm), flat[alias]
        if alias != "model_name" and canonical.get(key) is not None and not same(key, canonical[key], value):
            raise UserError(f"{alias} and {key} are the same setting and differ: give one of them")
        canonical[key] = value
    return canonical


def _resolve_kl_switch(flat: Mapping[str, Any], algorithm: str) -> Mapping[str, Any]:
    """Replace CoMLRL's switch of the KL term with a coefficient. Raises UserError for a value that is no boolean."""
    switch, coefficient = KL_SWITCH.format(algorithm=algorithm), f"{algorithm}.reference_kl_coef"
    if flat.get(switch) is None:
        return flat
    if not isinstance(flat[switch], bool):
        raise UserError(f"{switch} should be true or false, got {flat[switch]!r}: or set {coefficient} alone")
    rest = {key: value for key, value in flat.items() if key != switch}
    return {coefficient: COMLRL_KL_COEF} | rest if flat[switch] else rest | {coefficient: 0.0}


def canonical_values(flat: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """Return values by canonical key with every alias of a value replaced."""
    canonical = dict(flat)
    for key in (key.format(algorithm=algorithm) for key in PLUGIN_NAMES):
        if isinstance(canonical.get(key), str) and ":" not in canonical[key]:
            canonical[key] = canonical[key].lower()
    for key, values in VALUE_ALIASES.items():
        key = key.format(algorithm=algorithm)
        if key in canonical and not isinstance(canonical[key], bool | list | dict):
            value = canonical[key].lower() if isinstance(canonical[key], str) else canonical[key]
            canonical[key] = values.get(value, canonical[key])
    return canonical


def refuse_reference(name: str, where: str) -> None:
    """Raise UserError if an unknown setting is a KL setting of another library; the message names our settings."""
    if _REFERENCE_KL.fullmatch(name):
        raise UserError(f"""unknown setting '{where}{name}': the KL term to the reference policy is set by
        reference_kl_coef (coefficient), reference_kl (form), reference_model (its model) and
        resources.learner.offload_reference (memory)""")
