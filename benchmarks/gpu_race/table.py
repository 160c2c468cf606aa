"""The table of a race: its rows, and the ratios between this system, its bare parts and its peers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu_race.race import AGENTS

Row = Mapping[str, Any]


def table(rows: Sequence[Row]) -> list[str]:
    """Return one line per row (part, case, and the measurements or the reason of the failure), and the ratios."""
    lines = []
    for row in rows:
        measured = ", ".join(f"{name} {_number(value)}" for name, value in row["measured"].items())
        lines.append(f"{row['part']:<16} {row['case']:<16} {measured}")
    return [*lines, *ratios(rows)]


def ratios(rows: Sequence[Row]) -> list[str]:
    """Return one line per ratio. Only rows of the last row's card count, and of equal cases the last one."""
    latest = {}
    for row in rows:
        if row["machine"]["card"] == rows[-1]["machine"]["card"] and "failed" not in row["measured"]:
            latest[row["part"], row["case"]] = row["measured"]
    lines = []
    for (part, case), ours in latest.items():
        if part not in ("pair", "reference"):
            continue
        lines.append(_line(f"{part} {case}: whole step / bare parts", _whole_to_bare(latest, ours)))
        lines.append(_line(f"{part} {case}: CoMLRL / ours, seconds per joint sample", _comlrl_to_ours(latest, ours)))
        lines.append(_line(f"{part} {case}: TRL / ours, seconds per joint sample", _trl_to_ours(latest, ours)))
    return lines


Measured = Mapping[tuple[str, str], Mapping[str, Any]]


def _whole_to_bare(latest: Measured, ours: Mapping[str, Any]) -> float | str:
    """Return a step's seconds, divided by the seconds of a bare engine and learner for each agent in turn.

    The bare parts do the work of one turn, so a run of two turns has no such ratio.
    """
    engine = latest.get(("engine", ours["model"]))
    learner = latest.get(("learner", ours["model"]))
    if ours["turns"] > 1 or engine is None or learner is None:
        return "the parts engine and learner have no row of this work"
    return float(ours["step"]) / (AGENTS * (engine["s_per_step"] + learner["s_per_update"]))


def _comlrl_to_ours(latest: Measured, ours: Mapping[str, Any]) -> float | str:
    """Return the ratio for the peer's fastest prompt."""
    peers = []
    for (part, _), measured in latest.items():
        is_same_work = measured.get("model") == ours["model"] and measured.get("turns") == ours["turns"]
        if part.startswith("comlrl") and is_same_work:
            peers.append(measured["s_per_joint_sample"])
    if not peers:
        return "CoMLRL has no row of this work"
    return float(min(peers)) / float(ours["s_per_joint_sample"])


def _trl_to_ours(latest: Measured, ours: Mapping[str, Any]) -> float | str:
    """Return the ratio for one policy of the peer after another: as many samples per agent as joint samples."""
    peer = latest.get(("trl", ours["model"]))
    if ours["turns"] > 1 or peer is None:
        return "TRL has no row of this work"
    return AGENTS * float(peer["s_per_sample"]) / float(ours["s_per_joint_sample"])


def _line(name: str, value: float | str) -> str:
    return f"{'ratio':<16} {name}: {value if isinstance(value, str) else _number(value)}"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)
