"""The prompts of travel planning."""

from __future__ import annotations

from itertools import chain

from marl_ray.plugins.travel.scores import city_value
from marl_ray.plugins.travel.trip import (
    ACCOMMODATION,
    ATTRACTION,
    FIELDS,
    MEALS,
    NONE,
    ROLE_FIELDS,
    TRANSPORT,
    Place,
    Trip,
)

ROLES = ("logistics", "experience")
ALONE = "planner"


def roles(num_agents: int) -> list[str]:
    """Return the names of the agents."""
    if num_agents == 1:
        return [ALONE]
    return list(ROLES)


def fields_of(agent: int, num_agents: int) -> tuple[str, ...]:
    """Return the fields of an agent, in the order of a day."""
    if num_agents == 1:
        return FIELDS
    return ROLE_FIELDS[agent]


def first_prompt(request: str, trip: Trip, agent: int, num_agents: int) -> str:
    """Return the prompt of the first turn: request, days, catalogue and form of the answer."""
    fields = fields_of(agent, num_agents)
    lines = []
    for day in range(1, trip.days + 1):
        lines.append(f"Day {day}: {_day(trip, day, fields)}")
    lines += ["", *_catalogue(trip, fields)]
    team = ""
    if num_agents == 2:
        least = trip.least_costs()
        cap = least[agent] + (trip.budget - sum(least)) / 2
        team = (
            f"You are {ROLES[agent]}. {ROLES[1 - agent].capitalize()} plans the other fields at the same time, and the "
            f"plan is worth little if one of you fails. Spend at most {cap:.0f} of the budget.\n"
        )
    count = trip.days * len(fields)
    return (
        f"{request.strip()}\n\nBudget for all {trip.people} travellers: {trip.budget:.0f}.\n"
        + "\n".join(lines)
        + f"\n\n{team}Fill the fields {', '.join(fields)} of every day with values as listed, and write {NONE} for a "
        "field that is to stay empty. Several attractions are separated by semicolons; no restaurant or attraction is "
        f"visited twice. Write one JSON object with {count} assignments and nothing else:\n"
        f'{{"agent_id": {agent}, "assignments": [{{"day": 1, "field": "{fields[0]}", "value": "..."}}, ...]}}\n'
    )


def revision(agent: int, num_agents: int) -> str:
    """Return the closing instruction of later turns."""
    return f"Write the JSON object of {roles(num_agents)[agent]} again, with all assignments and nothing else."


def _day(trip: Trip, day: int, fields: tuple[str, ...]) -> str:
    """Return where the travellers are on a day, and which of the fields have to be filled."""
    needed = []
    empty = []
    for name in fields:
        if (day, name) in trip.required:
            needed.append(name)
        else:
            empty.append(name)
    parts = [f"current_city is {city_value(trip, day)}"]
    if needed:
        parts.append(f"fill {', '.join(needed)}")
    if empty:
        parts.append(f"may stay empty: {', '.join(empty)}")
    return "; ".join(parts) + "."


def _catalogue(trip: Trip, fields: tuple[str, ...]) -> list[str]:
    """Return the entries that the fields can have, one per line."""
    cities = list(dict.fromkeys(chain.from_iterable(trip.route)))
    lines = []
    if TRANSPORT in fields:
        lines.append("Connections:")
        for day in filter(trip.moves, range(1, trip.days + 1)):
            for way in trip.connections_on(day):
                lines.append(f"day {day}: {way} ({trip.cost(way):.0f})")
    if ACCOMMODATION in fields:
        lines.append("Accommodations, with the cost of a night:")
        for place in trip.of_kind(ACCOMMODATION, cities):
            lines.append(f"{place} ({_room(trip, place)})")
    if MEALS[0] in fields:
        lines.append("Restaurants, with the cost of a meal:")
        for place in trip.of_kind(MEALS[0], cities):
            lines.append(f"{place} ({trip.cost(place):.0f}; {', '.join(place.cuisines)})")
    if ATTRACTION in fields:
        lines += ["Attractions:", *map(str, trip.of_kind(ATTRACTION, cities))]
    return lines


def _room(trip: Trip, place: Place) -> str:
    """Return the facts about an accommodation."""
    rules = ""
    if place.rules and place.rules != NONE:
        rules = f"; {place.rules}"
    return f"{trip.cost(place):.0f}; {place.room}{rules}; at least {place.nights} nights"
