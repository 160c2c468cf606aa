"""A trip: the request, the route, and the catalogue of places and connections that a plan may use."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

CITY = "current_city"
TRANSPORT = "transportation"
ACCOMMODATION = "accommodation"
ATTRACTION = "attraction"
MEALS = ("breakfast", "lunch", "dinner")
FIELDS = (CITY, TRANSPORT, "breakfast", ATTRACTION, "lunch", "dinner", ACCOMMODATION)
"""The fields of a day, in order."""
ROLE_FIELDS = ((CITY, TRANSPORT, ACCOMMODATION), ("breakfast", ATTRACTION, "lunch", "dinner"))
"""The fields of the two roles."""
NONE = "-"
"""The value of a slot that stays empty."""
FLIGHT = "flight"
DRIVE = "self-driving"
TAXI = "taxi"
SEATS = {FLIGHT: 1, TAXI: 4, DRIVE: 5}
"""Travellers per ticket or vehicle."""
Slot = tuple[int, str]
"""A day, from 1, and a field."""

_FLIGHT = re.compile(r"flight number\s*:\s*(?P<name>\w+)\s*,\s*from (?P<start>.+) to (?P<end>.+)", re.IGNORECASE)
_GROUND = re.compile(r"(?P<name>self-driving|taxi)\s*,\s*from (?P<start>.+) to (?P<end>.+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """A restaurant, attraction or accommodation. `cost` is per person, for an accommodation per room and night."""

    kind: str
    name: str
    city: str
    cost: float = 0.0
    cuisines: tuple[str, ...] = ()
    room: str = ""
    rules: str = ""
    nights: int = 1
    guests: int = 1

    def __str__(self) -> str:
        return f"{self.name}, {self.city}"


@dataclass(frozen=True, slots=True)
class Connection:
    """A flight, or a drive by car or taxi. `date` is empty for connections of every day."""

    mode: str
    name: str
    start: str
    end: str
    cost: float
    date: str = ""

    def __str__(self) -> str:
        way = f"from {self.start} to {self.end}"
        if self.mode == FLIGHT:
            return f"Flight Number: {self.name}, {way}"
        return f"{self.mode.capitalize()}, {way}"


@dataclass(frozen=True)
class Trip:
    """One request. `route` has the start and the end of each day, equal on days without a journey. `cuisines`, `room`,
    `rule` and `no_mode` are the traveller's wishes, empty without them."""

    route: tuple[tuple[str, str], ...]
    dates: tuple[str, ...]
    people: int
    budget: float
    places: tuple[Place, ...]
    connections: tuple[Connection, ...]
    cuisines: tuple[str, ...] = ()
    room: str = ""
    rule: str = ""
    no_mode: str = ""

    @property
    def days(self) -> int:
        """The number of days."""
        return len(self.route)

    def moves(self, day: int) -> bool:
        """Return whether a journey takes place on a day."""
        start, end = self.route[day - 1]
        return start != end

    @cached_property
    def required(self) -> frozenset[Slot]:
        """The slots that a plan has to fill: on a journey the connection, on other days meals and attractions, and an
        accommodation on all days but the last."""
        slots: set[Slot] = set()
        for day in range(1, self.days + 1):
            names = [CITY, *MEALS, ATTRACTION]
            if self.moves(day):
                names = [CITY, TRANSPORT]
            if day < self.days:
                names.append(ACCOMMODATION)
            slots.update((day, name) for name in names)
        return frozenset(slots)

    @cached_property
    def _by_name(self) -> dict[tuple[str, str, str], Place]:
        places: dict[tuple[str, str, str], Place] = {}
        for place in self.places:  # the first place of a name counts
            places.setdefault((place.kind, normal(place.name), normal(place.city)), place)
        return places

    def place(self, kind: str, value: str) -> Place | None:
        """Return the place with this name and city (`Name, City`), None if the catalogue has none."""
        name, _, city = value.rpartition(",")
        return self._by_name.get((kind, normal(name), normal(city)))

    def connection(self, value: str, day: int) -> Connection | None:
        """Return the connection of this name that exists on a day, None if the catalogue has none."""
        match = _FLIGHT.fullmatch(value.strip()) or _GROUND.fullmatch(value.strip())
        if match is None:
            return None
        wanted = list(map(normal, match.group("name", "start", "end")))
        dates = ("", self.dates[day - 1])
        for known in self.connections:
            if known.date in dates and list(map(normal, (known.name, known.start, known.end))) == wanted:
                return known
        return None

    def wants_room(self, place: Place) -> bool:
        """Return whether an accommodation is of the wanted type."""
        actual = normal(place.room)
        if self.room == "not shared room":
            return actual != "shared room"
        if self.room == "entire room":
            return actual == "entire home/apt"
        return actual == self.room

    def cost(self, chosen: Place | Connection) -> float:
        """Return the cost for all travellers: of a meal, a night or a journey."""
        if isinstance(chosen, Connection):
            return chosen.cost * math.ceil(self.people / SEATS[chosen.mode])
        if chosen.kind == ACCOMMODATION:
            return chosen.cost * math.ceil(self.people / chosen.guests)
        return chosen.cost * self.people

    def least_costs(self) -> tuple[float, float]:
        """Return the cost of the cheapest choices of both roles, each by itself."""
        journeys = nights = meals = 0.0
        for day, (start, end) in enumerate(self.route, 1):
            journeys += min(map(self.cost, self.connections_on(day)), default=0.0)
            if day < self.days:
                nights += min(map(self.cost, self.of_kind(ACCOMMODATION, [end])), default=0.0)
            if not self.moves(day):
                meals += sum(sorted(map(self.cost, self.of_kind(MEALS[0], [start])))[: len(MEALS)])
        return journeys + nights, meals

    def of_kind(self, kind: str, cities: Iterable[str]) -> list[Place]:
        """Return the places of a kind in these cities. Restaurants have the kind `breakfast`."""
        wanted = set(cities)
        return [place for place in self.places if place.kind == kind and place.city in wanted]

    def connections_on(self, day: int) -> list[Connection]:
        """Return the connections of a day's journey, none on days without one."""
        dates = ("", self.dates[day - 1])
        known = []
        for connection in self.connections:
            if (connection.start, connection.end) == self.route[day - 1] and connection.date in dates:
                known.append(connection)
        return known


def normal(value: str) -> str:
    """Return a text in lower case without repeated white space; `-` if it is empty.

    Example:
        >>> normal("  New  York "), normal("")
        ('new york', '-')
    """
    return " ".join(value.split()).casefold() or NONE
