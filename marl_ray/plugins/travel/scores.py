"""The scores of a travel plan, each from 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
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
    right = set()
    chosen: dict[Slot, list[Place | Connection | None]] = {}
    in_city = []
    for (day, name), value in plan.items():
        if name == CITY:
            is_right = normal(value) == normal(city_value(trip, day))
        elif normal(value) == NONE:
            is_right = False  # counts for required slots only
        else:
            picks = _picks(trip, day, name, value)
            chosen[day, name] = picks
            is_right = bool(picks)
            for pick in picks:
                fits = pick is not None and _fits(trip, day, pick)
                in_city.append(fits)
                is_right = is_right and fits
        if is_right:
            right.add((day, name))
    required = trip.required
    recall = len(right & required) / len(required)
    known: list[Place | Connection] = []
    in_catalogue = []
    restaurants: list[Place | Connection] = []
    attractions: list[Place | Connection] = []
    for (_, name), picks in chosen.items():
        for pick in picks:
            in_catalogue.append(pick is not None)
            if pick is None:
                continue
            known.append(pick)
            if name in MEALS:
                restaurants.append(pick)
            elif name == ATTRACTION:
                attractions.append(pick)
    precision = _mean(in_catalogue, 0.0)
    sense = {
        "route": _mean([(day, CITY) in right for day in range(1, trip.days + 1)]),
        "transport": _transport(trip, plan, right, chosen),
        "in_city": _mean(in_city, 0.0),
        "in_catalogue": precision,
        "complete": _mean([normal(plan.get(slot, NONE)) != NONE for slot in required]),
        "restaurants": _share_of_different(restaurants),
        "attractions": _share_of_different(attractions),
        "nights": _nights(trip, chosen),
    }
    cost = sum(map(trip.cost, known))
    margin = 0.0
    if trip.budget > 0:
        margin = max(0.0, min(1.0, 2 - cost / trip.budget))
    wishes = _wishes(trip, chosen, recall, margin)
    others = [score for name, score in wishes.items() if name != "budget"]
    wishes_met = margin * math.prod(others)
    f1 = 0.0
    if recall and precision:
        f1 = 2 * precision * recall / (precision + recall)
    # Shares of a nearly empty plan, such as its coverage, count little.
    scale = 0.1 + 0.9 * recall
    coverage = len(plan) / (len(FIELDS) * trip.days)
    checks = 0.25 * _mean(list(sense.values())) + 0.15 * _mean(list(wishes.values()))
    quality = scale * 0.20 * coverage + 0.25 * recall + 0.15 * f1 + scale * checks
    roles = []
    for fields in ROLE_FIELDS:
        roles.append(_mean([slot in right for slot in required if slot[1] in fields]))
    return PlanScores(frozenset(right & required), tuple(roles), recall, quality, sense, wishes, cost, wishes_met)


def city_value(trip: Trip, day: int) -> str:
    """Return the right value of `current_city`."""
    start, end = trip.route[day - 1]
    if trip.moves(day):
        return f"from {start} to {end}"
    return start


def _picks(trip: Trip, day: int, name: str, value: str) -> list[Place | Connection | None]:
    """Return the entries of the catalogue that a value names, None for each unknown one."""
    if name == TRANSPORT:
        return [trip.connection(value, day)]
    if name in MEALS:
        return [trip.place(MEALS[0], value)]
    if name != ATTRACTION:
        return [trip.place(name, value)]
    return [trip.place(name, part) for part in value.split(";") if part.strip()]


def _fits(trip: Trip, day: int, pick: Place | Connection) -> bool:
    """Return whether an entry is where the travellers are on a day."""
    start, end = map(normal, trip.route[day - 1])
    if isinstance(pick, Connection):
        return trip.moves(day) and (normal(pick.start), normal(pick.end)) == (start, end)
    city = normal(pick.city)
    # On a day of travel, meals and attractions may be in either city; the night is in the second one.
    return city == end or (city == start and pick.kind != ACCOMMODATION)


def _transport(
    trip: Trip, plan: Mapping[Slot, str], right: set[Slot], chosen: Mapping[Slot, Sequence[object]]
) -> float:
    """Return the share of days with the right connection or none, 0 if one's own car is combined with others."""
    modes = set()
    are_right = []
    for day in range(1, trip.days + 1):
        slot = (day, TRANSPORT)
        for pick in chosen.get(slot, ()):
            if isinstance(pick, Connection):
                modes.add(pick.mode)
        if trip.moves(day):
            are_right.append(slot in right)
        else:
            are_right.append(normal(plan.get(slot, NONE)) == NONE)
    if DRIVE in modes and len(modes) > 1:
        return 0.0
    return _mean(are_right)


def _nights(trip: Trip, chosen: Mapping[Slot, Sequence[object]]) -> float:
    """Return the share of stays that last for the accommodation's minimum number of nights."""
    places = []
    for day in range(1, trip.days + 1):
        picks = chosen.get((day, ACCOMMODATION), [None])
        places.append(picks[0])
    lasts = []
    for place, nights in groupby(places):  # nights in a row at one place are a stay
        if isinstance(place, Place):
            lasts.append(len(list(nights)) >= place.nights)
    return _mean(lasts)


def _wishes(
    trip: Trip, chosen: Mapping[Slot, Sequence[Place | Connection | None]], recall: float, margin: float
) -> dict[str, float]:
    """Return the scores of the budget and of the traveller's further wishes. `margin` falls from 1 at the budget to
    0 at its double."""
    known = []
    for slot in trip.required | chosen.keys():
        if slot[1] in PRICED:
            known.append(None not in chosen.get(slot, [None]))
    wishes = {"budget": recall * _mean(known) * margin}
    rooms = []
    served: set[str] = set()
    modes = set()
    for pick in chain.from_iterable(chosen.values()):
        if isinstance(pick, Connection):
            modes.add(pick.mode)
        elif pick is not None:
            served.update(map(normal, pick.cuisines))
            if pick.kind == ACCOMMODATION:
                rooms.append(pick)
    if trip.cuisines:
        wishes["cuisine"] = _mean([normal(cuisine) in served for cuisine in trip.cuisines])
    if trip.rule:
        wishes["house_rule"] = _mean([f"no {trip.rule}" not in normal(room.rules) for room in rooms], 0.0)
    if trip.room:
        wishes["room"] = _mean([trip.wants_room(room) for room in rooms], 0.0)
    if trip.no_mode:
        wishes["no_mode"] = float(trip.no_mode not in modes)
    return wishes


def _share_of_different(picks: Sequence[object]) -> float:
    """Return the share of different ones, 1 if there are none."""
    if not picks:
        return 1.0
    return len(set(picks)) / len(picks)


def _mean(values: Sequence[float], default: float = 1.0) -> float:
    if not values:
        return default
    return fmean(values)
