"""The primary family: four comparisons named before their runs, with a test that assumes no distribution.

All other comparisons of the studies are exploratory. Each comparison is paired by seed. Its p-value is of the exact
sign-flip test: under the null hypothesis that two arms do not differ, the sign of each seed's difference is random.
With n seeds the smallest p-value is 2 / 2^n, so eight seeds are needed to pass Holm's correction for four comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.learning.study import JOINT
from benchmarks.markdown import markdown
from marl_ray.core.statistics import holm, sign_flip, student_interval

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A difference between two arms of a study: of `metric` after training, or with `gain` of its rise by training.
    `other_metric` is the metric of the second arm, if it has another one. An exploratory one is not in the family."""

    title: str
    arm: str
    other: str
    metric: str = "passed"
    gain: bool = False
    other_metric: str = ""
    exploratory: bool = False

    def differences(self, lines: Sequence[Line]) -> list[float]:
        """Return the differences of the seeds that both arms have, in order of the seeds."""
        own, others = ({line["seed"]: line for line in lines if line["arm"] == arm} for arm in (self.arm, self.other))
        subtracted = self.other_metric or self.metric
        found = []
        for seed in sorted(own.keys() & others.keys()):
            found.append(self._value(own[seed], self.metric) - self._value(others[seed], subtracted))
        return found

    def _value(self, line: Line, metric: str) -> float:
        before = line["before"][metric] if self.gain else 0.0
        return float(line["after"][metric] - before)


PRIMARY = (
    Comparison("both agents, less only main", JOINT, "only_main"),
    Comparison("both agents, less only aux", JOINT, "only_aux"),
    Comparison("both agents, less one policy for both", JOINT, "shared"),
    Comparison("both agents, less one agent", JOINT, "single_tokens"),
    # A pair has to agree first, so it starts lower than one agent and rises more.
    Comparison(
        "exploratory: rise of both agents, less rise of one agent",
        JOINT,
        "single_tokens",
        gain=True,
        exploratory=True,
    ),
)
"""Share of programs that pass all tests, with one turn and about as many sampled tokens (study `toy-primary`)."""


def primary_table(lines: Sequence[Line], comparisons: Sequence[Comparison] = PRIMARY) -> str:
    """Return a Markdown table of the comparisons with at least two seeds. The exploratory ones have no corrected p."""
    family: list[float] = []
    for comparison in comparisons:
        if not comparison.exploratory:
            differences = comparison.differences(lines)
            family.append(sign_flip(differences) if len(differences) > 1 else 1.0)
    corrected = iter(holm(family))
    head = ["", "seeds", "difference", "positive in", "p, sign flip", "p, corrected for all"]
    rows = [head]
    for comparison in comparisons:
        all_p = "" if comparison.exploratory else f"{next(corrected):.3f}"
        differences = comparison.differences(lines)
        if len(differences) < 2:
            continue
        mean, half = student_interval(differences)
        positive = f"{sum(value > 0 for value in differences)} of {len(differences)}"
        cells = [comparison.title, str(len(differences)), f"{mean:+.3f} ± {half:.3f}", positive]
        rows.append([*cells, f"{sign_flip(differences):.3f}", all_p])
    return markdown(rows)
