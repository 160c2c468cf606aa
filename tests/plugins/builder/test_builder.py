"""Building tasks: commands, the levels of both rewards, feedback by position, and the dataset types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marl_ray.core.errors import UserError
from marl_ray.data.loading import load_tasks
from marl_ray.plugins.builder.commands import build, read_commands
from marl_ray.plugins.builder.environment import HouseBuilder, WordBuilder
from marl_ray.plugins.builder.glyphs import GLYPHS
from marl_ray.plugins.builder.rows import HOUSE_BUILDER, WORD_BUILDER
from marl_ray.testing import check_environment

PUBLISHED = [json.loads(line) for line in (Path(__file__).parent / "published_rewards.jsonl").open()]
WALL = WORD_BUILDER.task({"target": ["##.", "#.."]}, 0)
HUT = {
    "inventory": {"S": "stone", "A": "air"},
    "layers": [{"y": 0, "rows": ["SS", "SS"]}, {"y": 1, "rows": ["SA", "AA"]}],
}
HOUSE = HOUSE_BUILDER.task({**HUT, "attack": 0.5}, 0)


@pytest.mark.parametrize(
    ("answer", "blocks", "rejected"),
    [
        ("/setblock 0 1 0 stone", {(0, 1, 0): "stone"}, 0),
        ("1. setblock 0 1 0 minecraft:stone\n- /SETBLOCK 1 1 0 stone", {(0, 1, 0): "stone", (1, 1, 0): "stone"}, 0),
        ("/setblock 0 0 0 stone\n/setblock 0 0 0 air", {}, 0),
        ("Sure:\n```text\n/setblock 0 0 0 stone\n```\n/setblock 1 0 0 stone", {(0, 0, 0): "stone"}, 0),
        ("/setblock 3 0 0 stone\n/setblock -1 0 0 stone\n/setblock ~ 0 0 stone", {}, 3),
        ("/setblock 0 0 0 lava\n/fill 0 0 0 1 1 0 stone\nHello", {}, 3),
        ("/setblock 0 0 0 stone\n" * 6, {(0, 0, 0): "stone"}, 1),
    ],
)
def test_setblock(answer: str, blocks: dict[Any, str], rejected: int) -> None:
    commands = read_commands(answer, "setblock", ["stone"], (3, 2, 1), 5)
    assert (build(commands.placed), commands.rejected) == (blocks, rejected)


def test_fill_stays_within_the_stock_and_kills() -> None:
    lines = ["1 0 1 0 0 0 stone", "0 1 0 1 1 1 stone", "0 0 0 1 0 1 stone replace", "0 0 0 0 0 0 air"]
    answer = "\n".join(["/kill @e", *(f"/fill {line}" for line in lines)])
    commands = read_commands(answer, "fill", ["stone"], (2, 2, 2), 9, {"stone": 7})
    assert sorted(build(commands.placed)) == [(0, 0, 1), (1, 0, 0), (1, 0, 1)]
    assert (commands.kills, commands.rejected) == (1, 2)  # 4 + 4 blocks exceed the stock; a mode is not allowed


@pytest.mark.parametrize(
    ("answers", "levels"),
    [
        (("", ""), (0, 0, 0, -0.5)),
        (("/setblock 0 1 0 stone", ""), (2 / 3, 0, 0, -0.5)),
        (("/setblock 0 1 0 stone\n/setblock 1 1 0 stone\n/setblock 0 0 0 stone", ""), (2, 0, -1, -0.5)),
        (("/setblock 0 1 0 stone\n/setblock 2 0 0 oak_planks", ""), (2 / 3, -0.5, 0, -0.25)),
        (("/setblock 0 1 0 stone", "/setblock 1 1 0 obsidian\n/setblock 0 0 0 obsidian"), (2, 0, 0, -0.5)),
        (("/setblock 0 1 0 stone", "/setblock 0 1 0 air"), (0, 0, 0, -0.5)),
    ],
)
def test_levels_of_words(answers: tuple[str, ...], levels: tuple[float, ...]) -> None:
    environment = WordBuilder(2)
    outcome = environment.outcome(environment.attempt(WALL, answers, last=True), None)
    assert tuple(outcome.levels.values()) == pytest.approx(levels)


@pytest.mark.parametrize(
    ("answers", "match", "attack"),
    [
        (("", ""), 3 / 8, -0.05),
        (("/kill", ""), 3 / 8, 0.0),
        (("/fill 0 0 0 1 0 1 stone", "/fill 0 1 0 0 1 0 stone"), 1.0, -0.05),  # the stock is 4 of 5 blocks
        (("/fill 0 0 0 1 0 1 stone\n/fill 0 1 0 0 1 0 stone", "/kill"), 7 / 8, 0.0),
        (("/fill 1 1 1 1 1 1 stone", "/kill"), 2 / 8, 0.0),
    ],
)
def test_levels_of_houses(answers: tuple[str, ...], match: float, attack: float) -> None:
    environment = HouseBuilder(2)
    outcome = environment.outcome(environment.attempt(HOUSE, answers, last=True), None)
    assert tuple(outcome.levels.values()) == pytest.approx((match, attack))
    assert outcome.metrics["all_passed"] == (match == 1 and not attack)


@pytest.mark.parametrize("row", PUBLISHED, ids=range(len(PUBLISHED)))
def test_rewards_equal_those_of_the_published_code(row: dict[str, Any]) -> None:
    kind, _, _ = row["task_id"].partition("/")
    (task,) = [task for task in load_tasks(f"bundled:{kind}", "train+eval") if task.id == row["task_id"]]
    environment = (WordBuilder if kind == "words" else HouseBuilder)(len(row["answers"]))
    outcome = environment.outcome(environment.attempt(task, row["answers"], last=True), None)
    assert outcome.reward == pytest.approx(row["reward"], abs=1e-8)


def test_feedback_by_position() -> None:
    words = WordBuilder(2)
    attempt = words.attempt(
        WALL, ["/setblock 0 1 0 stone\n/setblock 0 0 0 stone\nx", "/setblock 2 0 0 obsidian"], last=False
    )
    outcome = words.outcome(attempt, None)
    summary = [
        "covered: 2 of 3 positions",
        "blocks outside of the drawing: 1",
        "neighbours that are the same block: 100%",
    ]
    assert words.feedback(attempt, outcome, "level_passed", 0) == summary
    assert words.feedback(attempt, outcome, "level_feedback", 0) == [
        *summary,
        "(1, 1, 0): no block yet",
        "(2, 0, 0): outside of the drawing",
        "(0, 0, 0): the same block as a neighbour, stone",
        "lines of your answer that are no allowed command: 1",
    ]
    assert words.feedback(attempt, outcome, "level_feedback", 1) == summary
    houses = HouseBuilder(2)
    site = houses.attempt(HOUSE, ["/fill 0 0 0 1 0 1 stone", "/fill 1 1 0 1 1 0 stone"], last=False)
    lines = [houses.feedback(site, houses.outcome(site, None), "level_feedback", agent) for agent in (0, 1)]
    assert lines[0] == ["right: 6 of 8 positions", "spiders are attacking", "(1, 1, 0): should be air, is stone"]
    assert lines[1] == [*lines[0][:2], "(0, 1, 0): should be stone, is air"]


def test_long_feedback_is_cut() -> None:
    (task,) = load_tasks("bundled:words", "eval[-1:]")
    environment = WordBuilder(1)
    attempt = environment.attempt(task, [""], last=False)
    lines = environment.feedback(attempt, environment.outcome(attempt, None), "level_feedback", 0)
    assert lines[0] == "covered: 0 of 64 positions"
    assert (len(lines), lines[-1]) == (24, "and 44 more")


@pytest.mark.parametrize("agents", [1, 2])
@pytest.mark.parametrize(("environment", "name"), [(WordBuilder, "words"), (HouseBuilder, "houses")])
def test_the_bundled_buildings_are_tasks(environment: type[WordBuilder | HouseBuilder], name: str, agents: int) -> None:
    tasks = load_tasks(f"bundled:{name}", "train[:2]+eval[:1]")
    check_environment(environment(agents), tasks, [["/setblock 0 0 0 stone\n/fill 0 0 0 0 0 0 stone"] * agents])


def test_every_letter_is_a_drawing_of_its_own() -> None:
    assert len({tuple(rows) for rows in GLYPHS.values()}) == 26
    assert {(len(rows), len(line)) for rows in GLYPHS.values() for line in rows} == {(5, 5)}


def test_three_builders_of_words_are_rejected() -> None:
    with pytest.raises(UserError, match="environment word_builder has blocks for 2 agents: set num_agents to 1 or 2"):
        WordBuilder(3)


@pytest.mark.parametrize(
    ("dataset", "row", "message"),
    [
        (WORD_BUILDER, {"string": "A1"}, "there is no drawing of '1' in 'A1'"),
        (WORD_BUILDER, {"target": ["#", "##"]}, "target needs rows of equal length with # and ."),
        (WORD_BUILDER, {"target": [".."]}, "the drawing has no #"),
        (WORD_BUILDER, {"target": ["#" * 70] * 70}, "has 4900 positions, more than 4096"),
        (HOUSE_BUILDER, {**HUT, "layers": [{"y": 1, "rows": ["S"]}]}, r"layers need the heights 0 to 0 \(y\)"),
        (HOUSE_BUILDER, {**HUT, "layers": [{"y": 0, "rows": ["S", "SS"]}]}, "the same number of rows of equal length"),
        (HOUSE_BUILDER, {**HUT, "inventory": {"A": "air"}}, "inventory has no block for 'S'"),
        (HOUSE_BUILDER, {**HUT, "inventory": {"A": "air", "S": "air"}}, "and a block other than air"),
        (HOUSE_BUILDER, {**HUT, "attack": 2}, "attack should be a number from 0 to 1"),
        (HOUSE_BUILDER, {"layers": HUT["layers"]}, r"needs inventory \(blocks by letter\) and layers"),
    ],
)
def test_rows_that_are_no_buildings_are_rejected(dataset: Any, row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataset.task(row, 0)
