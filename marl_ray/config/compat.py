"""Old and other spellings: aliases of keys and of values.

`{algorithm}` in the tables stands for the section `magrpo` or `grpo`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from marl_ray.core.errors import UserError

# The names that CoMLRL and the reference's YAML files give to settings.
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
    return key_aliases(algorithm).get(key, key)


def key_aliases(algorithm: str) -> dict[str, str]:
    """Return the canonical key by alias, in files with the section `algorithm`."""
    aliases = {}
    for alias, canonical in KEY_ALIASES.items():
        aliases[alias.format(algorithm=algorithm)] = canonical.format(algorithm=algorithm)
    return aliases


def value_aliases(algorithm: str) -> dict[str, dict[Any, Any]]:
    """Return the canonical value by alias, by canonical key, in files with the section `algorithm`."""
    return {key.format(algorithm=algorithm): values for key, values in VALUE_ALIASES.items()}


def aliases_in_section(section: str, algorithm: str) -> list[str]:
    """Return the names of the aliases in a section ("" is the top level)."""
    names = []
    for alias in key_aliases(algorithm):
        place, _, name = alias.rpartition(".")
        if place == section:
            names.append(name)
    return names


def canonical_keys(flat: Mapping[str, Any], algorithm: str, same: Callable[[str, Any, Any], bool]) -> dict[str, Any]:
    """Return values by dotted key with every alias replaced by its canonical key.

    `same(key, a, b)` tells whether two values of a canonical key are equal after conversion. Raises UserError if a key
    and its alias are both given with different values. Unknown settings of the KL term that disable it (0, null, false)
    are dropped.
    """
    flat = _resolve_kl_switch(flat, algorithm)
    aliases = key_aliases(algorithm)
    canonical = {}
    for key, value in flat.items():
        place, _, name = key.rpartition(".")
        unknown_kl = place == algorithm and name not in KL_SETTINGS and _REFERENCE_KL.fullmatch(name)
        # 0, null and false switch the KL term off, which is the default here.
        if unknown_kl and not value:
            continue
        if key not in aliases:
            canonical[key] = value
    for alias, key in aliases.items():
        value = flat.get(alias)
        if value is None:
            continue
        # The legacy flag --model_name wins over model.name.
        if alias != "model_name" and canonical.get(key) is not None and not same(key, canonical[key], value):
            raise UserError(f"{alias} and {key} are the same setting and differ: give one of them")
        canonical[key] = value
    return canonical


def _resolve_kl_switch(flat: Mapping[str, Any], algorithm: str) -> Mapping[str, Any]:
    """Replace CoMLRL's switch of the KL term with a coefficient. Raises UserError for a value that is no boolean."""
    switch = KL_SWITCH.format(algorithm=algorithm)
    coefficient = f"{algorithm}.reference_kl_coef"
    rest = dict(flat)
    is_on = rest.pop(switch, None)
    if is_on is None:
        return flat
    if not isinstance(is_on, bool):
        raise UserError(f"{switch} should be true or false, got {is_on!r}: or set {coefficient} alone")
    if is_on:
        return {coefficient: COMLRL_KL_COEF, **rest}
    return {**rest, coefficient: 0.0}


def canonical_values(flat: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """Return values by canonical key with every alias of a value replaced."""
    canonical = dict(flat)
    for template in PLUGIN_NAMES:
        key = template.format(algorithm=algorithm)
        name = canonical.get(key)
        # module:Attr is Python's, where case matters.
        if isinstance(name, str) and ":" not in name:
            canonical[key] = name.lower()
    for key, values in value_aliases(algorithm).items():
        # False equals 0, which is an alias; lists have no hash.
        if key not in canonical or isinstance(canonical[key], bool | list | dict):
            continue
        value = canonical[key]
        if isinstance(value, str):
            value = value.lower()
        canonical[key] = values.get(value, canonical[key])
    return canonical


def refuse_reference(name: str, where: str) -> None:
    """Raise UserError if an unknown setting is a KL setting of another library; the message names our settings."""
    if _REFERENCE_KL.fullmatch(name):
        raise UserError(f"""unknown setting '{where}{name}': the KL term to the reference policy is set by
        reference_kl_coef (coefficient), reference_kl (form), reference_model (its model) and
        resources.learner.offload_reference (memory)""")
