"""The primary family: four comparisons named before their runs, with a test that assumes no distribution.

All other comparisons of the studies are exploratory. Each comparison is paired by seed. Its p-value is of the exact
sign-flip test: under the null hypothesis that two arms do not differ, the sign of each seed's difference is random.
With n seeds the smallest p-value is 2 / 2^n, so eight seeds are needed to pass Holm's correction for four comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.learning.studies import JOINT
from marl_ray.core.statistics import holm, sign_flip, student_interval

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A difference between two arms of a study: of `metric` after training, or with `gain` of its rise by training."""

    title: str
    arm: str
    other: str
    metric: str = "passed"
    gain: bool = False

    def differences(self, lines: Sequence[Line]) -> list[float]:
        """Return the differences of the seeds that both arms have, in order of the seeds."""
        own, others = ({line["seed"]: line for line in lines if line["arm"] == arm} for arm in (self.arm, self.other))
        return [self._value(own[seed]) - self._value(others[seed]) for seed in sorted(own.keys() & others.keys())]

    def _value(self, line: Line) -> float:
        before = line["before"][self.metric] if self.gain else 0.0
        return float(line["after"][self.metric] - before)


PRIMARY = (
    Comparison("both agents, less only main", JOINT, "only_main"),
    Comparison("both agents, less only aux", JOINT, "only_aux"),
    Comparison("both agents, less one policy for both", JOINT, "shared"),
    Comparison("both agents, less one agent", JOINT, "single_tokens"),
)
"""Share of programs that pass all tests, with one turn and about as many sampled tokens (study `toy-primary`)."""
EXPLORATORY = (
    Comparison("exploratory: rise of both agents, less rise of one agent", JOINT, "single_tokens", gain=True),
)
"""Comparisons that left the family: a pair has to agree first, so it starts lower than one agent and rises more."""


def primary_table(
    lines: Sequence[Line], comparisons: Sequence[Comparison] = PRIMARY, exploratory: Sequence[Comparison] = ()
) -> str:
    """Return a Markdown table of the comparisons with at least two seeds. The exploratory ones have no corrected p."""
    head = ["", "seeds", "difference", "positive in", "p, sign flip", "p, corrected for all"]
    rows = [head, ["---"] * len(head)]
    found = [(one, differences) for one in comparisons if len(differences := one.differences(lines)) > 1]
    p_values = [sign_flip(differences) for _, differences in found]
    missing = len(comparisons) - len(found)
    corrected = holm([*p_values, *[1.0] * missing])
    shown = [f"{p:.3f}" for p in corrected[: len(found)]]
    for comparison in exploratory:
        differences = comparison.differences(lines)
        if len(differences) > 1:
            found.append((comparison, differences))
            p_values.append(sign_flip(differences))
            shown.append("")
    for (comparison, differences), p, all_p in zip(found, p_values, shown, strict=True):
        mean, half = student_interval(differences)
        positive = f"{sum(value > 0 for value in differences)} of {len(differences)}"
        cells = [comparison.title, str(len(differences)), f"{mean:+.3f} ± {half:.3f}", positive]
        rows.append([*cells, f"{p:.3f}", all_p])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
