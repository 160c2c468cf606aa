"""Settings as another program has them, for runs that are compared with its own: what `compat` stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COMLRL: Mapping[str, Any] = {
    "model.temperature": 0.6,
    "model.top_p": 0.6,
    "model.top_k": 50,
    "{algorithm}.handoff": "all",
    "{algorithm}.early_termination_threshold": -0.2,
    "{algorithm}.normalize_advantages": True,
    "{algorithm}.importance": "none",
    "{algorithm}.weight_decay": 0.01,
    "{algorithm}.max_grad_norm": None,
}
"""CoMLRL 1.4.3: the defaults of its MAGRPOConfig, and what its trainer does without asking. It always grows whole
trees, its AdamW has torch's weight decay and no bound on the gradient's norm, and it corrects for no sampler. In the
keys, `{algorithm}` stands for the section `magrpo` or `grpo`."""
COMLRL_CRITIC: Mapping[str, Any] = {"model.top_k": None, "{algorithm}.early_termination_threshold": None}
"""The same of its IACConfig and MAACConfig, where those differ. Their threshold is left out: critics compare no
episodes here that ended early."""
COMLRL_REFERENCE_KL = "k3_in_reward"
"""Where its KL term is, if there is one."""


def compatible(
    name: str, given: Mapping[str, Any], entries: Sequence[Mapping[str, Any]] | None, algorithm: str
) -> dict[str, Any]:
    """What `compat: name` makes of settings that are not given, by key. `entries` are the agents' own settings."""
    if name == "none":
        return {}
    settings = COMLRL if given.get(f"{algorithm}.critic") in (None, "none") else {**COMLRL, **COMLRL_CRITIC}
    found = {key.format(algorithm=algorithm): value for key, value in settings.items()}
    coefficient = f"{algorithm}.reference_kl_coef"
    if given.get(coefficient) or any(entry.get("reference_kl_coef") for entry in entries or ()):
        found[f"{algorithm}.reference_kl"] = COMLRL_REFERENCE_KL
    return found
