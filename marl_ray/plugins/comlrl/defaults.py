"""Defaults of `compat: comlrl`, for settings that a file omits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COMLRL: Mapping[str, Any] = {
    "model.temperature": 0.6,
    "model.top_p": 0.6,
    "model.top_k": 50,
    "code_generation.helper_reward": "static",
    "travel.wishes": "added",
    "{algorithm}.handoff": "all",
    "{algorithm}.early_termination_threshold": -0.2,
    "{algorithm}.normalize_advantages": True,
    "{algorithm}.importance": "none",
    "{algorithm}.weight_decay": 0.01,
    "{algorithm}.max_grad_norm": None,
}
"""CoMLRL 1.4.3: the defaults of MAGRPOConfig and the fixed behaviour of its trainer, which always grows complete trees,
uses torch's weight decay for AdamW, does not clip gradients and has no importance weighting."""
COMLRL_CRITIC: Mapping[str, Any] = {"model.top_k": None}
"""Differences of IACConfig and MAACConfig."""


def defaults(given: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], algorithm: str) -> dict[str, Any]:
    """Return the defaults by key. `given` are settings of the run by key, `entries` the settings of single agents."""
    settings = dict(COMLRL)
    if given.get(f"{algorithm}.critic") not in (None, "none"):
        settings |= COMLRL_CRITIC
    by_key = {key.format(algorithm=algorithm): value for key, value in settings.items()}
    is_penalised = bool(given.get(f"{algorithm}.reference_kl_coef"))
    for entry in entries:
        is_penalised = is_penalised or bool(entry.get("reference_kl_coef"))
    if is_penalised:
        # CoMLRL subtracts its KL term from the reward of the whole completion.
        by_key[f"{algorithm}.reference_kl"] = "k3_in_reward"
    return by_key
