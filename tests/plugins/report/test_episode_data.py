"""The data of a run's episodes for its page: numbers of the records, choice within a size, ids, hostile text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from marl_ray.core.episode import Node
from marl_ray.core.errors import UserError
from marl_ray.plugins.report.episode_choice import chosen_order, spread_order
from marl_ray.plugins.report.episode_data import changed_tasks, episode_data
from marl_ray.plugins.report.episode_file import EpisodeFile, episode_id
from marl_ray.plugins.report.episode_tables import LONGEST_TEXT, EpisodeTables, page_size
from marl_ray.plugins.report.run_data import read_config
from marl_ray.plugins.report.run_page import data_text
from marl_ray.plugins.report.run_setup import run_setup
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.episode_records import episode_record
from tests.factories import Verdict, make_episode, make_node
from tests.plugins.report.report_runs import CONFIG, HOSTILE, write_run

REPORT = {
    "isolation": "process",
    "trusted": True,
    "syntax_error": None,
    "tests": [
        {"status": "pass", "error_type": None, "message": None, "line": None, "source": "assert f(1) == 1"},
        {
            "status": "fail",
            "error_type": "AssertionError",
            "message": "got 3",
            "line": None,
            "source": "assert f(2) == 2",
        },
    ],
    "passed": 1,
    "total": 2,
    "stdout": "printed",
    "cpu_s": 0.1,
    "wall_s": 0.2,
}


def write_records(folder: Path, records: Iterable[dict[str, Any]]) -> RunFolder:
    run = RunFolder(folder)
    run.path.mkdir(exist_ok=True)
    run.episodes.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return run


def record(step: int, node: Node | None, kind: str = "train", task: str = "toy/1") -> dict[str, Any]:
    return {"step": step, "kind": kind, **episode_record(make_episode(node)), "task": task}


def reports(*shares: tuple[int, int]) -> list[dict[str, Any]]:
    return [{**REPORT, "passed": passed, "total": total} for passed, total in shares]


def test_the_data_have_the_numbers_of_the_record(tmp_path: Path) -> None:
    child = make_node(1, [3.25, 0.1], levels={"tests": 0.5, "syntax": 0.25})
    given = record(4, make_node(0, [1.0, 2.0], {1: child}))
    given["roles"] = ["aux", "double"]
    given["nodes"][1]["joint_actions"][0]["report"] = REPORT
    given["nodes"][1]["joint_actions"][1] |= {"rewards": [0.2, 0.3], "written": ["x"]}
    data = episode_data(write_records(tmp_path / "run", [given]), 10**6)
    (episode,) = data["episodes"]
    assert (episode["task"], episode["step"], episode["kind"], episode["roles"]) == (
        "toy/1",
        4,
        "train",
        ["aux", "double"],
    )
    assert episode["reward"] == (3.25 + 0.1) / 2, "mean of the last turn"
    for node, recorded in zip(episode["nodes"], given["nodes"], strict=True):
        outcomes = [data["outcomes"][place] for place in node["outcomes"]]
        for outcome, action in zip(outcomes, recorded["joint_actions"], strict=True):
            assert outcome["reward"] == action["reward"]
            assert {data["texts"][name]: value for name, value in outcome["levels"]} == action["levels"]
        assert [[data["texts"][place] for place in group] for group in node["responses"]] == recorded["responses"]
        assert (node["path"], node["expanded"], "indices" in node) == (recorded["path"], recorded["expanded"], False)
    first, second = (data["outcomes"][place] for place in episode["nodes"][1]["outcomes"])
    report = data["reports"][first["report"]]
    assert (report["passed"], report["total"], data["texts"][report["stdout"]]) == (1, 2, "printed")
    facts = [None if place is None else data["texts"][place] for place in data["tests"][report["tests"][1]]]
    assert facts == ["fail", "AssertionError", "got 3", "assert f(2) == 2"]
    assert second["rewards"] == [0.2, 0.3]
    assert json.loads(data["texts"][second["evidence"]]) == {"written": ["x"]}
    assert data["note"] == "all 1 recorded episodes"


def test_solved_shares_come_from_test_reports(tmp_path: Path) -> None:
    given = record(1, make_node(0, [1.0, 2.0, 3.0, 4.0]))
    for action, report in zip(given["nodes"][0]["joint_actions"], reports((2, 2), (1, 2), (0, 0), (2, 2)), strict=True):
        action["report"] = report
    other = record(1, make_node(0, [1.0], evidence=Verdict("fine")), task="toy/2")
    other["nodes"][0]["joint_actions"][0]["report"] = {"passed": "yes", "total": 1, "tests": ["a plug-in's own"]}
    data = episode_data(write_records(tmp_path / "run", [given, other]), 10**6)
    assert [episode["solved"] for episode in data["episodes"]] == [[0.5], [None]]
    (evidence,) = [data["texts"][outcome["evidence"]] for outcome in data["outcomes"] if "evidence" in outcome]
    assert json.loads(evidence)["report"]["passed"] == "yes"


def test_equal_texts_and_outcomes_are_stored_once(tmp_path: Path) -> None:
    given = [record(step, make_node(0, [1.0, 1.0])) for step in range(50)]
    data = episode_data(write_records(tmp_path / "run", given), 10**6)
    assert len(data["texts"]) == len(set(data["texts"]))
    assert len(data["outcomes"]) == 1
    assert len(data["episodes"]) == 50


@pytest.mark.parametrize("limit", [20_000, 60_000, 10**7])
def test_a_page_stays_within_its_size_and_keeps_both_kinds_evenly_over_steps(tmp_path: Path, limit: int) -> None:
    given = []
    for step in range(1, 301):
        given.append(record(step, distinct_node(step), task=f"train/{step}"))
        if step % 100 == 0:
            given.append(record(step, distinct_node(step), "eval", "eval/1"))
    data = episode_data(write_records(tmp_path / "run", given), limit)
    assert len(data_text(data).encode()) <= limit
    steps = [episode["step"] for episode in data["episodes"] if episode["kind"] == "train"]
    held_out = [episode["step"] for episode in data["episodes"] if episode["kind"] == "eval"]
    assert {100, 300} <= set(held_out), "the first and the last evaluation"
    if limit == 10**7:
        assert data["note"] == "all 303 recorded episodes"
        return
    assert data["note"] == f"{len(data['episodes'])} of 303 recorded episodes, evenly over steps"
    assert page_size(data) > limit / 2
    # By halving, the largest distance is at most twice the mean one.
    distances = [later - earlier for earlier, later in pairwise(steps)]
    assert max(distances) <= 2 * math.ceil(300 / len(steps)) + 1
    assert steps[-1] == 300


def distinct_node(number: int) -> Node:
    """Return a node with texts that no other node has."""
    node = make_node(0, [float(number), 0.0])
    for calls in node.calls:
        for place, call in enumerate(calls):
            object.__setattr__(call.completion, "text", f"answer {number}.{place} <b>" * 5)
    return node


def test_beginnings_of_an_even_order_are_even() -> None:
    for count in (0, 1, 2, 7, 64, 100):
        assert sorted(spread_order(count)) == list(range(count))
    for size in (10, 30, 70):
        chosen = sorted(spread_order(1000)[:size])
        assert max(later - earlier for earlier, later in pairwise(chosen)) <= 2 * 1024 / size


def test_ids_stay_when_the_file_grows(tmp_path: Path) -> None:
    first = [record(1, make_node(0, [1.0])), record(1, make_node(0, [2.0])), record(2, make_node(0, [3.0]))]
    run = write_records(tmp_path / "run", first)
    file = EpisodeFile(run.episodes)
    file.update()
    before = [episode.id for episode in file.episodes]
    assert before[0] == episode_id("train", 1, "toy/1")
    assert before[1] == f"{before[0]}-2", "the second episode of the task in the step"
    write_records(tmp_path / "run", [*first, record(3, make_node(0, [4.0]))])
    file.update()
    assert [episode.id for episode in file.episodes[:3]] == before
    assert file.record(file.episodes[3])["nodes"][0]["joint_actions"][0]["reward"] == 4.0
    write_records(tmp_path / "run", first[:1])  # a resumed run drops the steps that it repeats
    file.update()
    assert [episode.id for episode in file.episodes] == before[:1]


def test_a_line_in_writing_is_read_later_and_a_damaged_line_is_named(tmp_path: Path) -> None:
    run = write_records(tmp_path / "run", [record(1, make_node(0, [1.0]))])
    complete = run.episodes.read_bytes()
    run.episodes.write_bytes(complete + complete[:20])
    file = EpisodeFile(run.episodes)
    file.update()
    assert len(file.episodes) == 1
    run.episodes.write_bytes(complete + complete[:20] + b"\n")
    with pytest.raises(UserError, match="damaged in line 2"):
        file.update()


def test_hostile_text_is_data(tmp_path: Path) -> None:
    run = RunFolder(write_run(tmp_path / "run", HOSTILE))
    text = data_text(episode_data(run, 10**6))
    assert "<" not in text
    data = json.loads(text)
    assert HOSTILE.replace("\ud800", "\ufffd") in data["texts"]
    (stop,) = data["episodes"][0]["stops"]
    assert (stop["path"], stop["reason"]) == ([1], "infra_error")


def test_an_empty_run_and_episodes_without_a_turn(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert episode_data(run, 10**5)["note"].startswith("The run has recorded no episode yet")
    data = episode_data(write_records(tmp_path, [record(1, None)]), 10**5)
    assert (data["episodes"][0]["reward"], data["episodes"][0]["nodes"], data["rewards"]) == (None, [], [0.0, 1.0])


def test_long_texts_are_cut_on_a_page_only() -> None:
    tables = EpisodeTables()
    tables.text("a" * LONGEST_TEXT + "b" * LONGEST_TEXT)
    assert "12000 characters are left out here" in tables.tables["texts"][0]
    whole = EpisodeTables(longest=None)
    whole.text("a" * 5 * LONGEST_TEXT)
    assert whole.tables["texts"] == ["a" * 5 * LONGEST_TEXT]


def test_a_counterfactual_without_a_verdict_is_null(tmp_path: Path) -> None:
    node = make_node(0, [1.0, 2.0])
    node.counterfactuals = {0: [0.5, math.nan]}
    data = episode_data(write_records(tmp_path, [record(1, node)]), 10**5)
    assert data["episodes"][0]["nodes"][0]["counterfactuals"] == {"0": [0.5, None]}
    data_text(data)


def test_the_median_of_the_improved_tasks_is_shown_first(tmp_path: Path) -> None:
    given = []
    for step, rewards in ((0, [0, 0, 0, 0, 5]), (5, [9, 9, 9, 9, 9]), (10, [1, 2, 7, 0, 4])):
        for task, reward in enumerate(rewards):
            given.append(record(step, make_node(0, [float(reward)]), "eval", f"eval/{task}"))
    data = episode_data(write_records(tmp_path, given), 10**6)
    changed = data["changed"]
    assert (changed["before"], changed["after"], changed["improved"]) == (0, 10, 3)
    assert [gain for _, _, gain in changed["pairs"]] == [-1.0, 0.0, 1.0, 2.0, 7.0]
    assert changed["start"] == 3, "2.0 is the median of 1, 2 and 7"
    ids = {episode["id"]: episode["task"] for episode in data["episodes"]}
    assert ids[changed["pairs"][3][0]] == ids[changed["pairs"][3][1]] == "eval/1"


def test_without_two_evaluations_nothing_is_compared(tmp_path: Path) -> None:
    run = write_records(tmp_path, [record(0, make_node(0, [1.0]), "eval"), record(1, make_node(0, [2.0]))])
    file = EpisodeFile(run.episodes)
    file.update()
    assert changed_tasks(file.episodes, [episode.id for episode in file.episodes]) is None
    assert len(chosen_order(file.episodes)) == 2


def test_the_tests_of_the_feedback_are_in_the_config(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run_setup(read_config(run), {}, [])["feedback_tests"] is None, "no config"
    for tests, expected in (("1", 1), ("-2", -2), ("all", None)):
        external = f"external: {{sandbox_slice: {tests}}}"
        run.config.write_text(f"{CONFIG}{external}\n", encoding="utf-8")
        assert run_setup(read_config(run), {}, [])["feedback_tests"] == expected


def test_a_tree_keeps_all_its_nodes_and_cross_joint_actions_their_indices(tmp_path: Path) -> None:
    tree = make_node(
        0, [1.0, 2.0], {0: make_node(1, [3.0, 4.0], agents=1), 1: make_node(1, [5.0, 6.0], agents=1)}, agents=1
    )
    given = record(1, tree)
    given["nodes"][0]["joint_actions"].reverse()
    data = episode_data(write_records(tmp_path, [given]), 10**6)
    (episode,) = data["episodes"]
    assert [node["path"] for node in episode["nodes"]] == [[], [0], [1]]
    assert episode["nodes"][0]["indices"] == [[1], [0]]
    assert episode["reward"] == 4.5, "mean of all joint actions of turn 2"
