"""The dataset type of travel planning: rows of TravelPlanner, whose catalogue is a list of tables as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import Conversion, id_of, text_of
from marl_ray.data.loading import DataRow
from marl_ray.data.row_fields import list_of, value_of
from marl_ray.plugins.travel.trip import ACCOMMODATION, ATTRACTION, FLIGHT, MEALS, Connection, Place, Trip, normal

MAX_DAYS = 14
ROOM_TYPES = "Shared room|Private room|Entire home/apt"
_NUMBER = r"(\d+(?:\.\d+)?)"
_RESTAURANT = re.compile(rf"(.+)\s+{_NUMBER}\s+(\D+?)\s+-?\d+(?:\.\d+)?")
_ATTRACTION = re.compile(r"(.+?)\s+-?\d+\.\d+\s+-?\d+\.\d+\s.+")
_ACCOMMODATION = re.compile(
    rf"(.+?)\s+{_NUMBER}\s+({ROOM_TYPES}|-)\s+(.*?)\s*{_NUMBER}\s+{_NUMBER}\s+-?\d+(?:\.\d+)?", re.IGNORECASE
)
_WAY = re.compile(
    r"(?P<mode>flight|self-driving|taxi) from (?P<start>.+?) to (?P<end>.+?)(?: on (?P<date>\d{4}-\d\d-\d\d))?",
    re.IGNORECASE,
)
_TICKET = re.compile(rf"\s*(F\w+)\s+{_NUMBER}\s", re.IGNORECASE)
_COST = re.compile(rf"\bcost\s*:\s*\$?{_NUMBER}", re.IGNORECASE)


def _travel(row: DataRow, number: int) -> Task:
    """Convert a row of TravelPlanner: query, org, days, date (one per day), people_number, budget, local_constraint and
    reference_information (a list of `{"Description", "Content"}`, as JSON or Python literal). `annotated_plan` is not
    read."""
    task_id = id_of(row, "travel", number, "id")
    query, origin = text_of(row, "query").strip(), text_of(row, "org").strip()
    if not query or not origin:
        raise UserError(f"task {task_id} needs query and org")
    days = int(_number(row, "days", task_id, 1, MAX_DAYS))
    dates = tuple(map(str, list_of(row, "date", task_id)))
    if len(dates) != days:
        raise UserError(f"task {task_id} needs one date for each of its {days} days")
    places: list[Place] = []
    connections: list[Connection] = []
    ways: list[tuple[str, str, str]] = []  # start, end and date of each leg, also of those without flights
    for record in list_of(row, "reference_information", task_id):
        if not isinstance(record, Mapping):
            raise UserError(f"task {task_id}: reference_information should be a list of objects")
        title, content = str(record.get("Description", "")).strip(), str(record.get("Content", ""))
        places += _places(title, content)
        if way := _WAY.fullmatch(title):
            connections += _connections(way, content)
            ways.append((way["start"], way["end"], way["date"] or ""))
    route = _route(origin, dates, ways)
    if all(start == end for start, end in route):
        raise UserError(f"task {task_id}: reference_information has no dated journey from {origin}")
    wishes = value_of(row, "local_constraint", task_id) or {}
    if not isinstance(wishes, Mapping):
        raise UserError(f"task {task_id}: local_constraint should be an object")
    cuisines = wishes.get("cuisine") or ()
    trip = Trip(
        route=route,
        dates=dates,
        people=int(_number(row, "people_number", task_id, 1, 100)),
        budget=_number(row, "budget", task_id, 1, 1e9),
        places=tuple(places),
        connections=tuple(connections),
        cuisines=(cuisines,) if isinstance(cuisines, str) else tuple(map(str, cuisines)),
        room=normal(str(wishes["room type"])) if wishes.get("room type") else "",
        rule=normal(str(wishes["house rule"])) if wishes.get("house rule") else "",
        no_mode=normal(str(wishes["transportation"])).removeprefix("no ") if wishes.get("transportation") else "",
    )
    return Task(task_id, query, {"trip": trip})


def _route(origin: str, dates: tuple[str, ...], ways: list[tuple[str, str, str]]) -> tuple[tuple[str, str], ...]:
    """Return start and end of each day: the journey of its date that starts where the travellers are, or a stay."""
    route: list[tuple[str, str]] = []
    city = origin
    for day in dates:
        ends = sorted(end for start, end, date in ways if date == day and normal(start) == normal(city))
        route.append((city, ends[0] if ends else city))
        city = route[-1][1]
    return tuple(route)


def _places(title: str, content: str) -> Iterator[Place]:
    """Yield the places of a table such as `Restaurants in Bern`. Lines that cannot be read are left out."""
    what, _, city = title.partition(" in ")
    ending = re.compile(rf"\s+{re.escape(city)}\s*$", re.IGNORECASE)
    for line in content.splitlines()[1:] if city else ():
        body = ending.sub("", line).strip()
        if what == "Restaurants" and (match := _RESTAURANT.fullmatch(body)):
            cuisines = tuple(part.strip() for part in match[3].split(","))
            yield Place(MEALS[0], match[1], city, float(match[2]), cuisines)
        elif what == "Attractions" and (match := _ATTRACTION.fullmatch(body)):
            yield Place(ATTRACTION, match[1], city)
        elif what == "Accommodations" and (match := _ACCOMMODATION.fullmatch(body)):
            nights, guests = int(float(match[5])), max(1, int(float(match[6])))
            yield Place(ACCOMMODATION, match[1], city, float(match[2]), (), match[3], match[4].strip(), nights, guests)


def _connections(way: re.Match[str], content: str) -> Iterator[Connection]:
    """Yield the flights of a table, or the drive of a text with its cost."""
    mode, start, end, date = way["mode"].lower(), way["start"], way["end"], way["date"] or ""
    if mode == FLIGHT:
        for line in content.splitlines()[1:]:
            if ticket := _TICKET.match(line):
                yield Connection(mode, ticket[1], start, end, float(ticket[2]), date)
    elif cost := _COST.search(content):
        yield Connection(mode, mode, start, end, float(cost[1]), date)


def _number(row: DataRow, field: str, task_id: str, least: float, most: float) -> float:
    """Return a number field. Raises UserError if it is missing or out of its bounds."""
    value: Any = row.get(field)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UserError(f"task {task_id} needs {field}, a number") from None
    if not least <= number <= most:
        raise UserError(f"task {task_id}: {field} is {value}, and should be from {least:g} to {most:g}")
    return number


TRAVEL = Conversion("travel", _travel)
