"""What devices held where engines and learners took turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

PHASES = {"play": "while engines play", "asleep": "while all sleep", "learn": "while a learner learns"}


def memory(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each such device: the most of each phase."""
    most: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        for key in row:
            section, _, rest = key.partition("/")
            device, _, phase = rest.partition("/")
            if section == "memory" and phase in PHASES:
                most[device][phase] = max(row[key], most[device].get(phase, 0.0))
    return [
        f"Memory of {device.replace('_', ' ')}: "
        + ", ".join(f"{found[phase]:,.0f} MB {words}" for phase, words in PHASES.items() if phase in found)
        + "."
        for device, found in sorted(most.items())
    ]
