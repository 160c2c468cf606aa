"""Travel planning: parts, the catalogue, the scores of a plan, the levels of the reward, and the dataset type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.data import infer_type
from marl_ray.data.loading import load_tasks
from marl_ray.plugins.travel.assignments import read_part
from marl_ray.plugins.travel.environment import TravelPlanning, Wishes
from marl_ray.plugins.travel.prompts import fields_of
from marl_ray.plugins.travel.rows import TRAVEL
from marl_ray.plugins.travel.scores import score_plan
from marl_ray.plugins.travel.trip import Slot, Trip
from marl_ray.testing import check_environment

TABLES = {
    "Restaurants in Ulm": "Name Average Cost Cuisines Aggregate Rating City\nOld Inn 10 French, Thai 4.0 Ulm\n"
    "Café 7 by the Lake 20 Indian 3.9 Ulm\nMill 30 French 4.5 Ulm",
    "Attractions in Ulm": "Name Latitude Longitude Address Phone Website City\nMinster 48.39 9.99 Square 1 - - Ulm",
    "Accommodations in Ulm": "NAME price room type house_rules minimum nights maximum occupancy review rate city\n"
    "Loft 50.0 Entire home/apt No smoking 2.0 2 4.0 Ulm\nNest 40.0 Private room No pets 3.0 1 3.0 Ulm\nbroken line",
    "Flight from Bonn to Ulm on 2025-05-01": "Flight Number Price\nF12 90 08:00 09:00",
    "Flight from Ulm to Bonn on 2025-05-03": "There is no flight from Ulm to Bonn on 2025-05-03.",
    "Self-driving from Bonn to Ulm": "self-driving, from Bonn to Ulm, duration: 5 hours, distance: 450 km, cost: 22",
    "Self-driving from Ulm to Bonn": "self-driving, from Ulm to Bonn, duration: 5 hours, distance: 450 km, cost: 22",
    "Taxi from Ulm to Bonn": "taxi, from Ulm to Bonn, duration: 5 hours, distance: 450 km, cost: 450",
}
ROW = {
    "query": "Three days in Ulm, please.",
    "org": "Bonn",
    "days": 3,
    "date": "['2025-05-01', '2025-05-02', '2025-05-03']",
    "people_number": 2,
    "budget": 400,
    "local_constraint": "{'house rule': None, 'cuisine': ['Thai'], 'room type': 'entire room', 'transportation': None}",
    "reference_information": str([{"Description": title, "Content": text} for title, text in TABLES.items()]),
    "annotated_plan": "never read",
}
TASK = TRAVEL.task(ROW, 0)
TRIP: Trip = TASK.fields["trip"]
PLAN = {
    (1, "current_city"): "from Bonn to Ulm",
    (1, "transportation"): "Self-driving, from Bonn to Ulm",
    (1, "accommodation"): "Loft, Ulm",
    (2, "current_city"): "Ulm",
    (2, "breakfast"): "old inn, ULM",
    (2, "lunch"): "Café 7 by the Lake, Ulm",
    (2, "dinner"): "Mill, Ulm",
    (2, "attraction"): "Minster, Ulm",
    (2, "accommodation"): "Loft, Ulm",
    (3, "current_city"): "from Ulm to Bonn",
    (3, "transportation"): "Self-driving, from Ulm to Bonn",
}


def answer(agent: int, plan: Mapping[Slot, str], agents: int = 2) -> str:
    """Return an agent's part of a plan, with empty values for missing slots."""
    slots = [(day, name) for day in (1, 2, 3) for name in fields_of(agent, agents)]
    items = [{"day": day, "field": name, "value": plan.get((day, name), "-")} for day, name in slots]
    return json.dumps({"agent_id": agent, "assignments": items})


def rewarded(*answers: str, wishes: Wishes = "multiplied", task: Task = TASK) -> Outcome:
    environment = TravelPlanning(len(answers), wishes)
    return environment.outcome(environment.attempt(task, answers, last=True), None)


def test_a_row_of_travelplanner_is_a_trip() -> None:
    assert TRIP.route == (("Bonn", "Ulm"), ("Ulm", "Ulm"), ("Ulm", "Bonn"))
    assert [(place.name, place.cost) for place in TRIP.places] == [
        ("Old Inn", 10),
        ("Café 7 by the Lake", 20),
        ("Mill", 30),
        ("Minster", 0),
        ("Loft", 50),
        ("Nest", 40),
    ]
    assert [str(one) for one in TRIP.connections_on(1)] == [
        "Flight Number: F12, from Bonn to Ulm",
        PLAN[1, "transportation"],
    ]
    assert (TRIP.cuisines, TRIP.room, TRIP.rule, TRIP.no_mode) == (("Thai",), "entire room", "", "")
    assert TRIP.least_costs() == (22 + 22 + 2 * 50, 2 * (10 + 20 + 30))  # two rooms for one guest cost 80 a night
    assert "never read" not in str(TASK)
    assert infer_type("osunlp/TravelPlanner:validation") == "travel"


def test_a_plan_without_faults_earns_everything() -> None:
    assert rewarded(answer(0, PLAN), answer(1, PLAN)).reward == pytest.approx(1.0)
    assert rewarded(answer(0, PLAN, 1)).reward == pytest.approx(1.0)
    assert score_plan(TRIP, PLAN).cost == 22 + 22 + 2 * 50 + 2 * 60


@pytest.mark.parametrize(
    ("changes", "scores"),
    [
        ({(2, "current_city"): "Bonn"}, {"route": 2 / 3}),
        ({(2, "dinner"): "Old Inn, Ulm"}, {"restaurants": 2 / 3}),
        ({(2, "dinner"): "Old Inn, Bonn"}, {"in_catalogue": 7 / 8, "in_city": 7 / 8, "restaurants": 1}),
        ({(2, "dinner"): "Old Inn"}, {"in_catalogue": 7 / 8}),
        ({(2, "dinner"): "-"}, {"complete": 10 / 11, "in_catalogue": 1}),
        ({(2, "attraction"): "Minster, Ulm; Minster, Ulm"}, {"attractions": 0.5}),
        ({(1, "transportation"): "Flight Number: F12, from Bonn to Ulm"}, {"transport": 0}),  # and a car on day 3
        ({(2, "transportation"): "Taxi, from Ulm to Bonn"}, {"transport": 0}),
        ({(1, "accommodation"): "Nest, Ulm"}, {"nights": 0}),
        ({(2, "accommodation"): "-"}, {"nights": 0}),
    ],
)
def test_checks_of_a_plan(changes: dict[Slot, str], scores: dict[str, float]) -> None:
    found = score_plan(TRIP, {**PLAN, **changes})
    assert {name: found.sense[name] for name in scores} == pytest.approx(scores)
    assert not found.is_success


@pytest.mark.parametrize(
    ("constraints", "budget", "name", "score"),
    [
        ({}, 264, "budget", 1),
        ({}, 176, "budget", 0.5),  # the plan costs one and a half times as much
        ({}, 132, "budget", 0),
        ({"cuisine": ["Thai", "Greek"]}, 400, "cuisine", 0.5),
        ({"house rule": "smoking"}, 400, "house_rule", 0),
        ({"house rule": "pets"}, 400, "house_rule", 1),
        ({"room type": "not shared room"}, 400, "room", 1),
        ({"room type": "private room"}, 400, "room", 0),
        ({"transportation": "no self-driving"}, 400, "no_mode", 0),
        ({"transportation": "no flight"}, 400, "no_mode", 1),
    ],
)
def test_wishes(constraints: dict[str, Any], budget: float, name: str, score: float) -> None:
    trip = TRAVEL.task({**ROW, "local_constraint": constraints, "budget": budget}, 0).fields["trip"]
    assert score_plan(trip, PLAN).wishes[name] == pytest.approx(score)


def test_the_weaker_role_limits_the_reward() -> None:
    empty = rewarded(answer(0, PLAN), answer(1, {}))
    assert (empty.metrics["logistics"], empty.metrics["experience"]) == (1, 0)
    scores = score_plan(TRIP, {slot: value for slot, value in PLAN.items() if slot[1] in fields_of(0, 2)})
    assert scores.bottleneck == pytest.approx(0.1)  # 0.2 * mean(1, 0) + 0.8 * 0
    assert empty.levels["roles"] == pytest.approx(0.14 * 0.1 * 0.08), "the wish for Thai food is not met"
    assert empty.reward < 0.3
    half = rewarded(answer(0, PLAN), answer(1, {slot: value for slot, value in PLAN.items() if slot[1] != "lunch"}))
    assert empty.reward < half.reward < 0.9
    assert rewarded(answer(0, {}), answer(1, {})).reward == pytest.approx(0.06)
    assert rewarded("", "").reward == pytest.approx(-0.1)


def test_a_plan_that_ignores_a_wish_earns_little() -> None:
    """Check a right plan whose restaurants do not serve the wanted food, and one that costs half as much again."""
    answers = answer(0, PLAN), answer(1, PLAN)
    for changes, met in (({"local_constraint": {"cuisine": ["Greek"]}}, 0.0), ({"budget": 176}, 0.5)):
        task = TRAVEL.task({**ROW, **changes}, 0)
        added, multiplied = (rewarded(*answers, wishes=rule, task=task) for rule in ("added", "multiplied"))
        assert added.reward > 0.85
        assert multiplied.reward == pytest.approx(0.06 + (added.reward - 0.06) * (0.08 + 0.92 * met))


def test_answers_that_are_not_valid_earn_little() -> None:
    first, second = answer(0, PLAN), answer(1, PLAN)
    outcome = rewarded(f"Here you are: {first}", second)
    assert dict(outcome.levels) == pytest.approx(
        {"partial": 0.05, "valid": 0.02, "roles": 0, "quality": 0, "recall": 0, "success": 0, "rejected": 0}
    )
    assert outcome.metrics["logistics"] == 1.0


OWNED = [(1, "lunch"), (1, "dinner")]
LUNCH, DINNER = '{"day": 1, "field": "lunch", "value": "A"}', '{"day": 1, "field": "dinner", "value": "-"}'
FORM = '{"agent_id": 1, "assignments": [%s]}'


@pytest.mark.parametrize(
    ("text", "names", "is_valid", "rejected"),
    [
        (FORM % f"{LUNCH}, {DINNER}", "lunch dinner", True, 0),
        (FORM % f"{LUNCH}, {DINNER}" + " Done.", "lunch dinner", False, 0),
        (FORM.replace("1", "0", 1) % f"{LUNCH}, {DINNER}", "lunch dinner", False, 0),
        (FORM % LUNCH, "lunch", False, 0),
        (FORM % f"{LUNCH}, {LUNCH}", "lunch", False, 0.5),
        (FORM % f"{LUNCH}, {DINNER}, {LUNCH.replace('lunch', 'breakfast')}", "lunch dinner", False, 1 / 3),
        (FORM % f"{LUNCH}, {DINNER.replace('1', 'true')}", "lunch", False, 0.5),
        ((FORM % f"{LUNCH}, {DINNER}")[:90], "lunch", False, 0),
        (f"[{LUNCH}, {DINNER}]", "lunch dinner", False, 0),
        ("[" * 30_000, "", False, 1),
        ("", "", False, 1),
    ],
)
def test_parts(text: str, names: str, is_valid: bool, rejected: float) -> None:
    part = read_part(text, 1, OWNED)
    assert [name for _, name in part.slots] == names.split()
    assert (part.is_valid, part.rejected) == (is_valid, pytest.approx(rejected))


def test_prompts_show_each_role_its_own_part_of_the_catalogue() -> None:
    first, second = TravelPlanning(2).first_prompts(TASK)
    assert "Loft, Ulm (50; Entire home/apt; No smoking; at least 2 nights)" in first
    assert "Old Inn" not in first
    assert "Old Inn, Ulm (20; French, Thai)" in second
    assert "Loft" not in second
    assert "Day 2: current_city is Ulm; fill breakfast, attraction, lunch, dinner." in second
    assert "Spend at most 212 of the budget." in first  # 144 and half of the rest of the budget, 136
    assert "Spend at most 188 of the budget." in second
    (alone,) = TravelPlanning(1).first_prompts(TASK)
    assert "Old Inn" in alone
    assert "Spend" not in alone


def test_feedback() -> None:
    environment = TravelPlanning(2)
    parts = [answer(0, {**PLAN, (2, "current_city"): "Bonn"}), answer(1, PLAN)[:-2]]
    attempt = environment.attempt(TASK, parts, last=False)
    outcome = environment.outcome(attempt, None)
    numbers = ["right: 10 of 11 fields that have to be filled", "cost: 264 of 400"]
    assert environment.feedback(attempt, outcome, "level_passed", 1) == numbers
    checks = ["failed: route", "not met: budget"]
    own = environment.feedback(attempt, outcome, "level_feedback", 0)
    assert own == [*numbers, "form: right", *checks, "day 2, current_city: wrong"]
    form = "form: not one JSON object with all of your assignments"
    assert environment.feedback(attempt, outcome, "level_feedback", 1) == [*numbers, form, *checks]


@pytest.mark.parametrize("agents", [1, 2])
def test_the_bundled_trips_are_tasks(agents: int) -> None:
    tasks = load_tasks("bundled:trips", "train[:4]+eval[:1]")
    check_environment(TravelPlanning(agents), tasks, [[answer(0, PLAN, agents)] * agents])
    for task in load_tasks("bundled:trips", "train+eval"):
        assert sum(task.fields["trip"].least_costs()) < task.fields["trip"].budget


def test_three_planners_are_rejected() -> None:
    with pytest.raises(UserError, match="environment travel has two roles: set num_agents to 1 or 2"):
        TravelPlanning(3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": " "}, "task travel/row 0 needs query and org"),
        ({"days": None}, "needs days, a number"),
        ({"days": 99}, "days is 99, and should be from 1 to 14"),
        ({"date": ["2025-05-01"]}, "needs one date for each of its 3 days"),
        ({"budget": 0}, "budget is 0, and should be from 1"),
        ({"reference_information": "["}, "reference_information is neither JSON nor a Python literal"),
        ({"reference_information": ["x"]}, "reference_information should be a list of objects"),
        ({"reference_information": []}, "has no dated journey from Bonn"),
        ({"local_constraint": "[1]"}, "local_constraint should be an object"),
    ],
)
def test_rows_that_are_no_trips_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TRAVEL.task({**ROW, **changes}, 0)
