"""Section `math` of a config."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from marl_ray.config.values import Section
from marl_ray.core.errors import UserError
from marl_ray.plugins.math.symbolic import PACKAGES

if TYPE_CHECKING:
    from marl_ray.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class MathConfig(Section):
    """Environments math and math_debate: problems with one short answer."""

    answers: Literal["exact", "symbolic"] = "exact"
    """Comparison with the reference. exact: numbers by value; tasks with another kind of answer are refused. symbolic:
    expressions too, by math-verify in the sandbox, whose `sandbox.packages` must name its packages."""
    verifier: Literal["judges", "corrects"] = "judges"
    """Task of the verifier. judges: it says whether the solver's answer is right, and earns 1 if that is true;
    corrects: it gives the final answer, and earns 1 if that is right."""


def check_packages(config: Config) -> None:
    """Raise UserError if symbolic comparison lacks its packages, here or in the sandbox."""
    if config.section(MathConfig).answers != "symbolic":
        return
    if importlib.util.find_spec("math_verify") is None:
        raise UserError("math.answers: symbolic needs math-verify: install marl-ray[math]")
    missing = [name for name in PACKAGES if name not in config.sandbox.packages]
    if missing:
        raise UserError(f"math.answers: symbolic needs sandbox.packages: [{', '.join(PACKAGES)}]")
