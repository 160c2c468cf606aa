"""The console on a terminal: a table that fits, hostile texts, a sampled episode, and no colours in a pipe."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState, TrainingResult
from marl_ray.results import run_summary
from marl_ray.results.closing_lines import closing_lines
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry import console_sink, logs
from marl_ray.telemetry import terminal as terminal_module
from marl_ray.telemetry.console_sink import EPISODE_EVERY, ConsoleSink
from marl_ray.telemetry.episode_table import episode_table
from marl_ray.telemetry.metrics import MetricRow, evaluation_row, rollout_row, step_row
from marl_ray.telemetry.sinks import JsonlSink, MetricStream
from marl_ray.telemetry.terminal import cell_width, fit, printable
from tests.factories import Verdict, make_config, make_episode, make_node, quickstart_config

POLICIES = [PolicyId((0,)), PolicyId((1,))]
CONFIG = make_config(num_turns=2)
TIMES: MetricRow = {"time/learn": 2.0, "time/sync": 1.0, "time/step": 8.0}
SOLVED = make_node(1, [4.0, 4.0], metrics={"all_passed": 1.0})
CHAIN = make_episode(make_node(0, [1.0, 3.0], {1: SOLVED}, evidence=Verdict("fine")))
ANSWERS = ["def aux(n):\n\treturn 2 * n\x1b[2J", "def f(n):\n    return aux(n)  # 猫"]


Read = Callable[[], str]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Read:
    """Make standard error a terminal, and return a function that reads it."""
    for module in (logs, console_sink, terminal_module):
        monkeypatch.setattr(module, "is_terminal", lambda: True)
    monkeypatch.setattr(logs, "_progress", False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    handlers = list(logs.ROOT.handlers)
    monkeypatch.setattr(logs.ROOT, "handlers", handlers)
    logs.configure(logging.INFO)
    return lambda: capsys.readouterr().err


def record(answers: list[str]) -> dict[str, Any]:
    def node(turn: int, path: list[int], expanded: list[int]) -> dict[str, Any]:
        actions = [
            {"indices": [0] * len(answers), "reward": 1.0 + turn, "levels": {}, "report": {"total": 2, "passed": 1}}
        ]
        actions.append({"indices": [0] * len(answers), "reward": 0.0, "levels": {}})
        responses = [[answer] for answer in answers]
        prompts = ["Double\nit.\x9b31m"] * len(answers)
        return {
            "turn": turn,
            "path": path,
            "prompts": prompts,
            "responses": responses,
            "joint_actions": actions,
            "expanded": expanded,
        }

    return {"task": "toy/1", "stops": [], "nodes": [node(1, [], [0]), node(2, [0], [])]}


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


def row_of(step: int) -> MetricRow:
    row = step_row(
        TrainerState(step, 4 * step, 0),
        rollout_row(CONFIG.training, CONFIG.external, [CHAIN], [], 4.0, 0),
        {},
        {},
        TIMES,
    )
    return row | {"agent_0/loss": -1.5, "agent_1/loss": 0.25}


def run(steps: int, with_episodes: bool = True) -> None:
    stream = MetricStream([ConsoleSink(steps, 0, POLICIES, num_turns=2, every=1)])
    records = [record(ANSWERS)] * with_episodes
    stream.evaluation(
        evaluation_row(CONFIG.training, CONFIG.external, TrainerState(0, 0, 0), [CHAIN], {"eval": 1.0}),
        "before",
        records,
    )
    for step in range(1, steps + 1):
        stream.step(row_of(step), records)
    stream.close()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_fit_the_terminal_and_their_columns_are_aligned(
    terminal: Read, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    run(3, with_episodes=False)
    shown = terminal()
    titles, *lines = plain(shown)
    assert len(lines) == 4
    assert {len(line) for line in [titles, *lines]} == {len(titles)}
    assert len(titles) < width
    assert re.split(r"\s{2,}", titles.strip())[:2] == ["step", "reward 1" if width > 40 else "reward 2"]
    assert ("loss 1" in titles, "sync" in titles) == (width > 40, width > 80)
    assert lines[0].startswith("before")
    assert lines[1].strip().startswith("1/3")
    for line in lines:
        assert line[titles.index("reward 2") :].startswith("    4.00")
    assert "\x1b[" in shown


def test_an_episode_is_shown_at_the_first_evaluation_and_then_rarely(
    terminal: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run(EPISODE_EVERY + 3)
    lines = plain(terminal())
    assert [line.rstrip("─") for line in lines if line.startswith("── ")] == [
        "── toy/1, a held-out task before training ",
        f"── toy/1, a training task at step {EPISODE_EVERY} ",
    ]
    assert sum(line.strip().startswith("step") for line in lines) == 3, "titles follow each episode"
    assert max(map(cell_width, lines)) < 80


def test_a_pipe_has_no_table_and_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    run(2)
    legend, *lines = capsys.readouterr().err.splitlines()
    assert legend.startswith("reward: mean of each turn; solved: share")
    assert [line[:10] for line in lines] == ["eval      ", "step 1/2 |", "step 2/2 |"]
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize("width", [40, 79, 200])
def test_the_table_of_an_episode_is_aligned_and_harmless(
    terminal: Read, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    table = episode_table(record(ANSWERS), "a training task at step 5", width)
    assert "\x1b" not in table
    assert "\x9b" not in table
    assert "␛[2J" in table
    lines = table.splitlines()
    assert max(map(cell_width, lines)) == width
    assert any(line.startswith("turn 2: reward 3.00, advantage over its") for line in lines)
    if width > 40:
        assert "turn 1: reward 2.00, advantage over its group +1.00, 1 of 2 tests passed" in lines
        assert len({cell_width(line.partition("│")[0]) for line in lines if "│" in line}) == 1
    else:
        assert lines.count("agent 1") == 2


def test_texts_take_exactly_their_columns() -> None:
    assert fit("猫猫猫", 4) == "猫… "
    assert cell_width("e\u0301") == 1
    assert printable("a\ud800\u202eb\r") == "a?\N{REPLACEMENT CHARACTER}b␍"


def test_the_end_of_a_run_is_a_result_an_advice_and_a_command(
    terminal: Read, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    folder = RunFolder(tmp_path)
    stream = MetricStream([JsonlSink(folder.metrics, folder.episodes, done=0)])
    result = TrainingResult(1, 4, 0, None, [])
    stream.step(row_of(1), [])
    monkeypatch.setattr(run_summary, "commands", lambda: {"report": None})
    lines = closing_lines(quickstart_config(), folder, result, 60.0)
    assert lines[0] == "training reward 4.00, 100% solved, after 1 step in 1.0 min"
    assert lines[-1] == f"curves and episodes: marl-ray report {folder}"
    assert len(lines) == 3
    monkeypatch.setattr(run_summary, "commands", dict)  # without the plug-in
    assert closing_lines(quickstart_config(), folder, result, 60.0)[-1] == f"results: {folder}"
    stream.evaluation(
        evaluation_row(CONFIG.training, CONFIG.external, TrainerState(1, 4, 0), [CHAIN], {"eval": 1.0}), "after", []
    )
    assert closing_lines(quickstart_config(), folder, result, 60.0)[0].startswith("held-out reward 4.00, 100% solved")


def test_answers_have_the_names_of_their_roles() -> None:
    table = episode_table(record(ANSWERS) | {"roles": ["helper", "entry\x1bpoint"]}, "step 1", 80)
    assert "helper" in table
    assert "entry␛point" in table
    assert "agent 0" not in table
    assert "agent 0" in episode_table(record(ANSWERS) | {"roles": []}, "step 1", 80)
