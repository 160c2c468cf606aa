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
    query = text_of(row, "query").strip()
    origin = text_of(row, "org").strip()
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
        title = str(record.get("Description", "")).strip()
        content = str(record.get("Content", ""))
        places += _places(title, content)
        way = _WAY.fullmatch(title)
        if way:
            connections += _connections(way, content)
            ways.append((way["start"], way["end"], way["date"] or ""))
    route = _route(origin, dates, ways)
    if all(start == end for start, end in route):
        raise UserError(f"task {task_id}: reference_information has no dated journey from {origin}")
    wishes = value_of(row, "local_constraint", task_id) or {}
    if not isinstance(wishes, Mapping):
        raise UserError(f"task {task_id}: local_constraint should be an object")
    cuisines = wishes.get("cuisine") or ()
    if isinstance(cuisines, str):
        cuisines = [cuisines]
    if not isinstance(cuisines, list | tuple):
        raise UserError(f"task {task_id}: cuisine of local_constraint should be a list")
    trip = Trip(
        route=route,
        dates=dates,
        people=int(_number(row, "people_number", task_id, 1, 100)),
        budget=_number(row, "budget", task_id, 1, 1e9),
        places=tuple(places),
        connections=tuple(connections),
        cuisines=tuple(map(str, cuisines)),
        room=_wish(wishes, "room type"),
        rule=_wish(wishes, "house rule"),
        no_mode=_wish(wishes, "transportation").removeprefix("no "),
    )
    return Task(task_id, query, {"trip": trip})


def _wish(wishes: Mapping[str, Any], name: str) -> str:
    """Return a wish in normal form, empty without it."""
    wish = wishes.get(name)
    if not wish:
        return ""
    return normal(str(wish))


def _route(origin: str, dates: tuple[str, ...], ways: list[tuple[str, str, str]]) -> tuple[tuple[str, str], ...]:
    """Return start and end of each day: the journey of its date that starts where the travellers are, or a stay."""
    route: list[tuple[str, str]] = []
    city = origin
    for day in dates:
        ends = []
        for start, end, date in ways:
            if date == day and normal(start) == normal(city):
                ends.append(end)
        end = min(ends, default=city)
        route.append((city, end))
        city = end
    return tuple(route)


def _places(title: str, content: str) -> Iterator[Place]:
    """Yield the places of a table such as `Restaurants in Bern`. Lines that cannot be read are left out."""
    what, _, city = title.partition(" in ")
    ending = re.compile(rf"\s+{re.escape(city)}\s*$", re.IGNORECASE)
    if not city:
        return
    for line in content.splitlines()[1:]:
        body = ending.sub("", line).strip()
        if what == "Restaurants":
            match = _RESTAURANT.fullmatch(body)
            if match:
                cuisines = tuple(part.strip() for part in match[3].split(","))
                yield Place(MEALS[0], match[1], city, float(match[2]), cuisines)
        elif what == "Attractions":
            match = _ATTRACTION.fullmatch(body)
            if match:
                yield Place(ATTRACTION, match[1], city)
        elif what == "Accommodations":
            match = _ACCOMMODATION.fullmatch(body)
            if match:
                yield Place(
                    ACCOMMODATION,
                    match[1],
                    city,
                    cost=float(match[2]),
                    room=match[3],
                    rules=match[4].strip(),
                    nights=int(float(match[5])),
                    guests=max(1, int(float(match[6]))),
                )


def _connections(way: re.Match[str], content: str) -> Iterator[Connection]:
    """Yield the flights of a table, or the drive of a text with its cost."""
    mode = way["mode"].lower()
    date = way["date"] or ""
    if mode != FLIGHT:
        cost = _COST.search(content)
        if cost:
            yield Connection(mode, mode, way["start"], way["end"], float(cost[1]), date)
        return
    for line in content.splitlines()[1:]:
        ticket = _TICKET.match(line)
        if ticket:
            yield Connection(mode, ticket[1], way["start"], way["end"], float(ticket[2]), date)


def _number(row: DataRow, field: str, task_id: str, least: float, most: float) -> float:
    """Return a number field. Raises UserError if it is missing or out of its bounds."""
    value: Any = row.get(field)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"task {task_id} needs {field}, a number") from None
    if not least <= number <= most:
        raise UserError(f"task {task_id}: {field} is {value}, and should be from {least:g} to {most:g}")
    return number


TRAVEL = Conversion("travel", _travel)
