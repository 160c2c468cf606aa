"""The parts of a plan: one JSON object of assignments per agent."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from marl_ray.plugins.travel.trip import Slot

MAX_CHARACTERS = 40_000
"""Longer answers are cut."""
_OBJECT = re.compile(r"\{[^{}]*\}")
_KEYS = {"day", "field", "value"}


@dataclass(frozen=True, slots=True)
class PlanPart:
    """One agent's assignments. `is_valid`: the answer is nothing but the JSON object, and assigns each of the agent's
    slots once. `rejected`: share of assignments that are malformed, repeated, or of slots of another agent."""

    slots: dict[Slot, str]
    is_valid: bool
    rejected: float


def read_part(answer: str, agent: int, owned: Collection[Slot]) -> PlanPart:
    """Return the assignments in an answer. Complete assignments are found in answers that are cut or have other text
    around them, but do not make such answers valid.

    Example:
        >>> read_part('{"agent_id": 0, "assignments": [{"day": 1, "field": "lunch", "value": "-"}]}', 0, {(1, "lunch")})
        PlanPart(slots={(1, 'lunch'): '-'}, is_valid=True, rejected=0.0)
    """
    text = answer[:MAX_CHARACTERS].encode("utf-8", "replace").decode()
    items = list(map(_loaded, _OBJECT.findall(text)))
    slots: dict[Slot, str] = {}
    for item in items:
        slot = _slot(item)
        if slot is not None and slot in owned and slot not in slots:
            slots[slot] = item["value"].strip().encode("utf-8", "replace").decode()
    rejected = 1.0
    if items:
        rejected = 1 - len(slots) / len(items)
    whole = _loaded(text)
    is_valid = (
        isinstance(whole, dict)
        and whole.keys() == {"agent_id", "assignments"}
        and type(whole["agent_id"]) is int
        and whole["agent_id"] == agent
        and isinstance(whole["assignments"], list)
        and len(whole["assignments"]) == len(items) == len(slots) == len(owned)
    )
    return PlanPart(slots, is_valid, rejected)


def _slot(item: Any) -> Slot | None:
    """Return the slot of a complete assignment, else None."""
    if not isinstance(item, dict) or item.keys() != _KEYS:
        return None
    day = item["day"]
    name = item["field"]
    value = item["value"]
    if type(day) is not int or not isinstance(name, str):
        return None
    if not isinstance(value, str) or not value.strip():
        return None
    return day, name


def _loaded(text: str) -> Any:
    """Return the JSON value, None if the text is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
