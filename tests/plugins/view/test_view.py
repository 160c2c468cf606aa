"""`marl-ray view`: the table, the filter, the episode on the right, and a run in progress, in 80 columns."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from marl_ray.cli.main import main
from marl_ray.plugins.view.app import EpisodeBrowser
from marl_ray.plugins.view.episode_filter import EpisodeFilter
from marl_ray.plugins.view.episode_index import EpisodeIndex
from marl_ray.storage.run_folder import RunFolder
from tests.factories import ROOT, quickstart_config

HOSTILE = "def aux(n):\n    return [bold]n[/bold]\x1b[2J\u202e"
Script = Callable[[Pilot[None], EpisodeBrowser], Awaitable[None]]


def episode(
    step: int,
    task: str = "toy/1",
    kind: str = "train",
    rewards: Sequence[float] = (1.0, 2.0),
    passed: Sequence[int] = (0, 2),
    answer: str = "def aux(n):\n    return n",
) -> dict[str, Any]:
    """Return the record of an episode with a turn per reward, two agents and two tests."""
    nodes = []
    path: list[int] = []
    for turn, (reward, count) in enumerate(zip(rewards, passed, strict=True), start=1):
        tests = []
        for number in range(2):
            status = "pass" if number < count else "fail"
            tests.append(
                {"status": status, "source": f"assert f({number})", "error_type": "AssertionError", "message": "no"}
            )
        report = {"total": 2, "passed": count, "tests": tests, "syntax_error": None}
        action = {"indices": [0, 0], "reward": reward, "levels": {"tests": count / 2}, "report": report}
        other = {"indices": [1, 1], "reward": 0.0, "levels": {}}
        prompts = [f"Double {task} with a helper."] * 2
        if turn > 1:
            prompts = ["Feedback:\ntests: 0 of 2 passed\n\nRevise it."] * 2
        responses = [[f"{answer} * {turn}", "x"], [f"def f(n):\n    return aux(n)  # {turn}", "y"]]
        nodes.append(
            {
                "turn": turn,
                "path": list(path),
                "prompts": prompts,
                "responses": responses,
                "joint_actions": [action, other],
                "expanded": [0] if turn < len(rewards) else [],
            }
        )
        path.append(0)
    return {"step": step, "kind": kind, "task": task, "stops": [], "nodes": nodes}


def write(folder: Path, records: Sequence[dict[str, Any]]) -> EpisodeIndex:
    """Append records to the episodes of a run folder, and return its index."""
    path = RunFolder(folder).episodes
    with path.open("a", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    index = EpisodeIndex(path)
    index.read_new()
    return index


RECORDS = (
    episode(0, "toy/1", "eval"),
    episode(1, "toy/2", passed=(0, 1), rewards=(0.5, 0.25)),
    episode(2, "toy/1", rewards=(4.0, 4.0), passed=(2, 2), answer=HOSTILE),
    episode(3, "other/7", rewards=(-1.0, 3.0)),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder with the config of the quickstart."""
    from marl_ray.config import to_yaml

    (tmp_path / "config.yaml").write_text(to_yaml(quickstart_config()), encoding="utf-8")
    return tmp_path


def browse(index: EpisodeIndex, script: Script, line: str = "", size: tuple[int, int] = (80, 24)) -> None:
    async def play() -> None:
        app = EpisodeBrowser("a run", index, line)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(pilot, app)

    asyncio.run(play())


def shown(app: EpisodeBrowser) -> str:
    """Return the text on the right."""
    return str(app.query_one("#text", Static).render())


def steps(app: EpisodeBrowser) -> list[int]:
    return [facts.step for facts in app.listed]


def test_keys_move_between_episodes_and_between_steps_of_a_task(folder: Path) -> None:
    async def script(pilot: Pilot[None], app: EpisodeBrowser) -> None:
        assert steps(app) == [0, 1, 2, 3]
        assert "toy/1  held-out, step 0" in shown(app)
        await pilot.press("j")
        assert "toy/2  training, step 1" in shown(app)
        await pilot.press("k", "n")
        assert "toy/1  training, step 2" in shown(app)
        await pilot.press("n")
        assert "step 2" in shown(app), "there is no later step of the task"
        await pilot.press("p")
        assert "step 0" in shown(app)
        await pilot.press("k")
        assert "step 0" in shown(app)
        await pilot.press("q")
        assert not app.is_running

    browse(write(folder, RECORDS), script)


def test_an_episode_has_turns_verdicts_feedback_and_a_comparison(folder: Path) -> None:
    async def script(pilot: Pilot[None], app: EpisodeBrowser) -> None:
        text = shown(app)
        for part in (
            "Turn 1: reward 1.00, advantage +0.50",
            "▸ prompt of agent 1, 1 lines (f)",
            "0 of 2 tests passed",
            "✗ assert f(0) → fail AssertionError no",
            "Feedback:\ntests: 0 of 2 passed\nRevise it.",
            "-     return n * 1",
            "+     return n * 2",
            "2 of 2 tests passed",
        ):
            assert part in text
        assert "Double toy/1" not in text
        await pilot.press("f", "d")
        assert "Double toy/1 with a helper." in shown(app)
        assert "+     return" not in shown(app)

    browse(write(folder, RECORDS), script)


def test_an_environment_without_tests_has_its_verdict_and_its_evidence(folder: Path) -> None:
    record = episode(1)
    for node, solved in zip(record["nodes"], (False, True), strict=True):
        action = node["joint_actions"][0]
        del action["report"]
        action |= {"solved": solved, "said": {"solver": "24"}}

    async def script(pilot: Pilot[None], app: EpisodeBrowser) -> None:
        first, second = shown(app).split("Turn 2")
        assert 'not solved\nsaid: {"solver": "24"}' in first
        assert "not solved" not in second
        assert "solved\nsaid" in second
        assert app.listed[0].solved == (False, True)

    browse(write(folder, [record]), script)


def test_texts_of_models_are_neither_commands_nor_markup(folder: Path) -> None:
    async def script(pilot: Pilot[None], app: EpisodeBrowser) -> None:
        text = shown(app)
        assert "return [bold]n[/bold]␛[2J\N{REPLACEMENT CHARACTER}" in text
        assert "\x1b" not in text

    browse(write(folder, [episode(1, "[red]\x1b]0;", answer=HOSTILE)]), script)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("toy/1", [0, 2]),
        ("DOUBLE other", [3]),
        ("train", [1, 2, 3]),
        ("held-out", [0]),
        ("solved", [0, 2, 3]),
        ("unsolved", [1]),
        ("step=1..2", [1, 2]),
        ("step=2..", [2, 3]),
        ("reward=..2", [0, 1]),
        ("train step=..2 reward=4", [2]),
        ("text=[bold]", [2]),
        ("nothing", []),
    ],
)
def test_filters(folder: Path, line: str, expected: list[int]) -> None:
    index = write(folder, RECORDS)
    chosen = EpisodeFilter.parse(line)
    assert [facts.step for facts in index.episodes if chosen.matches(facts, index)] == expected


def test_the_line_of_the_filter(folder: Path) -> None:
    async def script(pilot: Pilot[None], app: EpisodeBrowser) -> None:
        await pilot.press("slash", *"train toy", "enter")
        assert steps(app) == [1, 2]
        assert "2 of 4 episodes to step 3, by step, filter: train toy" in str(app.query_one("#title", Static).render())
        await pilot.press("slash", *"nothing", "enter", "j")
        assert shown(app) == "No episode matches the filter."
        await pilot.press("slash", "x", "escape")
        assert app.query_one("#filter", Input).value == "nothing"

    browse(write(folder, RECORDS), script)


def test_a_wrong_range_is_named_and_changes_nothing(folder: Path) -> None:
    async def script(pilot: Pilot[None], app: EpisodeBrowser) -> None:
        await pilot.press("slash", *"step=x", "enter")
        assert "step=x is no range" in str(app.query_one("#title", Static).render())
        await pilot.press("escape", "j")
        assert "step 1" in shown(app)

    browse(write(folder, RECORDS), script)


def test_the_order_is_chosen_and_the_episode_stays(folder: Path) -> None:
    async def script(pilot: Pilot[None], app: EpisodeBrowser) -> None:
        orders = []
        await pilot.press("j", "j", "j")
        for _ in range(4):
            await pilot.press("o")
            orders.append(steps(app))
            assert "step 3" in shown(app)
        assert orders == [[1, 0, 3, 2], [2, 3, 0, 1], [3, 0, 2, 1], [0, 1, 2, 3]]

    browse(write(folder, RECORDS), script, line="step=..3")


def test_new_episodes_of_a_run_appear_and_the_shown_one_stays(folder: Path) -> None:
    index = write(folder, RECORDS[:2])
    path = RunFolder(folder).episodes

    async def script(pilot: Pilot[None], app: EpisodeBrowser) -> None:
        await pilot.press("j")
        line = json.dumps(episode(9, "toy/9"))
        with path.open("a", encoding="utf-8") as file:
            file.write(line[:50])  # which the run is writing
            file.flush()
            app.read_new()
            assert steps(app) == [0, 1]
            file.write(line[50:] + "\n")
        app.read_new()
        await pilot.pause()
        assert steps(app) == [0, 1, 9]
        assert "step 1" in shown(app)
        # A resumed run rewrites the file.
        replaced = path.with_suffix(".new")
        replaced.write_text(json.dumps(episode(5)) + "\n", encoding="utf-8")
        replaced.replace(path)
        app.read_new()
        await pilot.pause()
        assert steps(app) == [5]
        assert "step 5" in shown(app)

    browse(index, script)


def test_it_fits_80_columns_and_scrolls(folder: Path) -> None:
    async def script(pilot: Pilot[None], app: EpisodeBrowser) -> None:
        pane = app.query_one("#episode")
        assert pane.region.right <= 80
        assert pane.size.width >= 40
        assert app.table.region.height >= 20
        await pilot.press("space")
        assert pane.scroll_y > 0
        await pilot.press("b")
        assert pane.scroll_y == 0

    browse(write(folder, RECORDS), script)


def test_damaged_and_unfinished_lines_are_left_out(folder: Path) -> None:
    index = write(folder, [RECORDS[0], {"step": 1, "nodes": 3}, {"step": 2, "task": "a", "stops": [], "nodes": []}])
    assert [facts.task for facts in index.episodes] == ["toy/1", "a"]

    async def script(pilot: Pilot[None], app: EpisodeBrowser) -> None:
        await pilot.press("j")
        assert "a  training, step 2" in shown(app)

    browse(index, script)


def test_three_thousand_episodes_open_in_two_seconds(folder: Path) -> None:
    records = [
        episode(number, f"toy/{number % 50}", answer="def aux(n):\n    return n\n" * 200) for number in range(3000)
    ]
    write(folder, records)
    begun = time.process_time()

    async def script(pilot: Pilot[None], app: EpisodeBrowser) -> None:
        assert len(app.listed) == 3000
        assert "step 0" in shown(app)
        # Processor time, because other programs of the machine are none of this one.
        assert time.process_time() - begun < 2.0

    index = EpisodeIndex(RunFolder(folder).episodes)
    index.read_new()
    browse(index, script)


def error_of(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["view", *arguments]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def test_errors_are_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "has no recorded episodes: set output.episodes_per_step" in error_of([str(folder)], capsys)
    write(folder, RECORDS)
    assert "view needs a terminal: marl-ray report" in error_of([str(folder)], capsys)
    assert "step=a is no range" in error_of([str(folder), "--filter", "step=a"], capsys)
    assert "is not a run folder: config.yaml is missing" in error_of([str(tmp_path / "none")], capsys)


@pytest.mark.parametrize("installed", [True, False])
def test_a_light_installation_suffices_and_a_missing_one_is_named(folder: Path, installed: bool) -> None:
    write(folder, RECORDS)
    # The browser itself would need a terminal.
    code = (
        "import sys\n"
        "from marl_ray.cli.main import main\n"
        f"blocked = {[] if installed else ['textual']}\n"
        "sys.modules.update(dict.fromkeys(blocked))\n"
        "if not blocked:\n"
        "    from marl_ray.plugins.view.app import EpisodeBrowser\n"
        "    import marl_ray.plugins.view.command as command\n"
        "    command.has_terminal = lambda: True\n"
        "    EpisodeBrowser.run = lambda self: print(len(self.index.episodes))\n"
        f"code = main(['view', {str(folder)!r}])\n"
        "print(code, *{'torch', 'ray', 'transformers', 'matplotlib'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    if installed:
        assert (done.stdout.split(), done.stderr) == (["4", "0"], "")
    else:
        assert done.stderr == "error: this needs textual: pip install 'marl-ray[view]'\n"


def test_the_browser_starts_without_the_config_and_numpy() -> None:
    # Both together take as long to import as the browser itself.
    modules = "marl_ray.plugins.view.app, marl_ray.storage.run_folder, sys"
    code = f"import {modules}; print(sorted({{'marl_ray.config', 'numpy'}} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"
