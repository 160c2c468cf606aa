"""The scores of a travel plan, each from 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from marl_ray.plugins.travel.trip import (
    ACCOMMODATION,
    ATTRACTION,
    CITY,
    DRIVE,
    FIELDS,
    MEALS,
    NONE,
    ROLE_FIELDS,
    TRANSPORT,
    Connection,
    Place,
    Slot,
    Trip,
    normal,
)

PRICED = (TRANSPORT, *MEALS, ACCOMMODATION)


@dataclass(frozen=True, slots=True)
class PlanScores:
    """The scores of a plan. `right` are the required slots with a right value; `roles` the share of right ones per
    role; `sense` and `wishes` are the checks of the plan and of the traveller's constraints, by name."""

    right: frozenset[Slot]
    roles: tuple[float, ...]
    recall: float
    quality: float
    sense: Mapping[str, float]
    wishes: Mapping[str, float]
    cost: float
    wishes_met: float
    """Product of the wishes, whose budget counts the cost alone and not the recall."""

    @property
    def bottleneck(self) -> float:
        """The roles' shares, most of all the smallest."""
        return 0.2 * fmean(self.roles) + 0.8 * min(self.roles)

    @property
    def joint_quality(self) -> float:
        """Quality that the weaker role limits: 0 if either is 0."""
        return float(self.bottleneck**0.65 * self.quality**0.35)

    @property
    def is_success(self) -> bool:
        """Whether every check passes."""
        return min(*self.roles, *self.sense.values(), *self.wishes.values()) == 1


def score_plan(trip: Trip, plan: Mapping[Slot, str]) -> PlanScores:
    """Return the scores of a plan: values by slot, without unassigned slots."""
    right: set[Slot] = set()
    chosen: dict[Slot, list[Place | Connection | None]] = {}
    in_city: list[bool] = []
    for (day, name), value in plan.items():
        if name == CITY:
            is_right = normal(value) == normal(city_value(trip, day))
        elif normal(value) == NONE:
            is_right = False  # counts for required slots only
        else:
            picks = chosen[day, name] = _picks(trip, day, name, value)
            fits = [pick is not None and _fits(trip, day, pick) for pick in picks]
            in_city += fits
            is_right = bool(fits) and all(fits)
        if is_right:
            right.add((day, name))
    required = trip.required
    recall = len(right & required) / len(required)
    entities = [pick for picks in chosen.values() for pick in picks]
    precision = _mean([pick is not None for pick in entities], 0.0)
    sense = {
        "route": _mean([(day, CITY) in right for day in range(1, trip.days + 1)]),
        "transport": _transport(trip, plan, right, chosen),
        "in_city": _mean(in_city, 0.0),
        "in_catalogue": precision,
        "complete": _mean([normal(plan.get(slot, NONE)) != NONE for slot in required]),
        "restaurants": _different([pick for (_, name), picks in chosen.items() if name in MEALS for pick in picks]),
        "attractions": _different(
            [pick for (_, name), picks in chosen.items() if name == ATTRACTION for pick in picks]
        ),
        "nights": _nights(trip, chosen),
    }
    cost = sum(trip.cost(pick) for pick in entities if pick is not None)
    margin = max(0.0, min(1.0, 2 - cost / trip.budget)) if trip.budget > 0 else 0.0
    wishes = _wishes(trip, chosen, recall, margin)
    wishes_met = margin * math.prod(score for name, score in wishes.items() if name != "budget")
    f1 = 2 * precision * recall / (precision + recall) if recall and precision else 0.0
    scale = 0.1 + 0.9 * recall
    coverage = len(plan) / (len(FIELDS) * trip.days)
    checks = 0.25 * _mean(list(sense.values())) + 0.15 * _mean(list(wishes.values()))
    quality = scale * 0.20 * coverage + 0.25 * recall + 0.15 * f1 + scale * checks
    roles = tuple(_mean([slot in right for slot in required if slot[1] in fields]) for fields in ROLE_FIELDS)
    return PlanScores(frozenset(right & required), roles, recall, quality, sense, wishes, cost, wishes_met)


def city_value(trip: Trip, day: int) -> str:
    """Return the right value of `current_city`."""
    start, end = trip.route[day - 1]
    return f"from {start} to {end}" if trip.moves(day) else start


def _picks(trip: Trip, day: int, name: str, value: str) -> list[Place | Connection | None]:
    """Return the entries of the catalogue that a value names, None for each unknown one."""
    if name == TRANSPORT:
        return [trip.connection(value, day)]
    kind = MEALS[0] if name in MEALS else name
    parts = [part for part in value.split(";") if part.strip()] if name == ATTRACTION else [value]
    return [trip.place(kind, part) for part in parts]


def _fits(trip: Trip, day: int, pick: Place | Connection) -> bool:
    """Return whether an entry is where the travellers are on a day."""
    route = tuple(map(normal, trip.route[day - 1]))
    if isinstance(pick, Connection):
        return trip.moves(day) and (normal(pick.start), normal(pick.end)) == route
    return normal(pick.city) in (route[-1:] if pick.kind == ACCOMMODATION else route)


def _transport(
    trip: Trip, plan: Mapping[Slot, str], right: set[Slot], chosen: Mapping[Slot, Sequence[object]]
) -> float:
    """Return the share of days with the right connection or none, 0 if one's own car is combined with others."""
    days = [
        (day, TRANSPORT) in right if trip.moves(day) else normal(plan.get((day, TRANSPORT), NONE)) == NONE
        for day in range(1, trip.days + 1)
    ]
    modes = {pick.mode for picks in chosen.values() for pick in picks if isinstance(pick, Connection)}
    return 0.0 if DRIVE in modes and len(modes) > 1 else _mean(days)


def _nights(trip: Trip, chosen: Mapping[Slot, Sequence[object]]) -> float:
    """Return the share of stays that last for the accommodation's minimum number of nights."""
    stays: list[tuple[Place, int]] = []
    before: object = None
    for day in range(1, trip.days + 1):
        (now,) = chosen.get((day, ACCOMMODATION), [None])
        if isinstance(now, Place):
            stays, count = (stays[:-1], stays[-1][1]) if now == before else (stays, 0)
            stays.append((now, count + 1))
        before = now
    return _mean([count >= place.nights for place, count in stays])


def _wishes(
    trip: Trip, chosen: Mapping[Slot, Sequence[Place | Connection | None]], recall: float, margin: float
) -> dict[str, float]:
    """Return the scores of the budget and of the traveller's further wishes. `margin` falls from 1 at the budget to
    0 at its double."""
    priced = {slot for slot in trip.required if slot[1] in PRICED} | {slot for slot in chosen if slot[1] in PRICED}
    known = _mean([None not in chosen.get(slot, [None]) for slot in priced])
    wishes = {"budget": recall * known * margin}
    picks = [pick for picks in chosen.values() for pick in picks]
    rooms = [pick for pick in picks if isinstance(pick, Place) and pick.kind == ACCOMMODATION]
    if trip.cuisines:
        served = {cuisine for pick in picks if isinstance(pick, Place) for cuisine in map(normal, pick.cuisines)}
        wishes["cuisine"] = _mean([normal(cuisine) in served for cuisine in trip.cuisines])
    if trip.rule:
        wishes["house_rule"] = _mean([f"no {trip.rule}" not in normal(room.rules) for room in rooms], 0.0)
    if trip.room:
        wishes["room"] = _mean([trip.wants_room(room) for room in rooms], 0.0)
    if trip.no_mode:
        wishes["no_mode"] = float(all(pick.mode != trip.no_mode for pick in picks if isinstance(pick, Connection)))
    return wishes


def _different(picks: Sequence[object]) -> float:
    """Return the share of different ones among the known entries, 1 if there are none."""
    known = [pick for pick in picks if pick is not None]
    return len(set(known)) / len(known) if known else 1.0


def _mean(values: Sequence[float], default: float = 1.0) -> float:
    return fmean(values) if values else default
