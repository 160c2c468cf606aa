"""Sinks of rows and episode records: files and console."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from marl_ray.core.episode import Episode, Stop
from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState
from marl_ray.telemetry import console_sink as console
from marl_ray.telemetry.console_sink import ConsoleSink
from marl_ray.telemetry.episode_records import episode_record, is_solved, other_evidence
from marl_ray.telemetry.metrics import MetricRow, evaluation_row, rollout_row, step_row
from marl_ray.telemetry.sinks import JsonlSink, MetricStream, Sink, is_evaluation, read_rows
from tests.factories import TASK, Verdict, make_config, make_episode, make_node

CONFIG = make_config(num_turns=2)
SETTINGS = (CONFIG.training, CONFIG.external)
TIMES: MetricRow = {"time/learn": 2.0, "time/sync": 1.0, "time/step": 8.0}
CHAIN = make_episode(
    make_node(0, [1.0, 3.0], {1: make_node(1, [4.0, 4.0], metrics={"all_passed": 1.0})}, evidence=Verdict("fine"))
)
RECORD = episode_record(CHAIN)


def row_of(step: int) -> MetricRow:
    return step_row(TrainerState(step, 4 * step, 0), rollout_row(*SETTINGS, [CHAIN], [], 4.0, 0), {}, {}, TIMES)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "metrics.jsonl", tmp_path / "episodes.jsonl"


def test_rows_and_episode_records_are_appended(paths: tuple[Path, Path]) -> None:
    stream = MetricStream([JsonlSink(*paths, done=0)])
    stream.evaluation(evaluation_row(*SETTINGS, TrainerState(0, 0, 0), [CHAIN], {"eval": 1.0}), "before", [RECORD])
    stream.step(row_of(1), [RECORD] * 2)
    stream.step(row_of(2) | {"agent_0/loss": float("nan")}, [RECORD])
    metrics, episodes = map(lines, paths)
    assert [row["step"] for row in metrics] == [0, 1, 2]
    assert metrics[2]["agent_0/loss"] is None
    assert [(e["step"], e["kind"]) for e in episodes] == [(0, "eval"), (1, "train"), (1, "train"), (2, "train")]


def test_a_resumed_run_drops_the_rows_that_it_writes_again(paths: tuple[Path, Path]) -> None:
    first = MetricStream([JsonlSink(*paths, done=0)])
    for step in (1, 2, 3):
        first.step(row_of(step), [RECORD])
    with paths[0].open("a") as file:
        file.write('{"step": 4, "env_')  # cut off
    MetricStream([JsonlSink(*paths, done=2)]).step(row_of(3), [])
    assert [row["step"] for row in lines(paths[0])] == [1, 2, 3]
    assert [row["step"] for row in lines(paths[1])] == [1, 2]
    JsonlSink(*paths, done=0)
    assert [path.read_text() for path in paths] == ["", ""]


def test_evaluations_of_logged_steps_are_kept(paths: tuple[Path, Path]) -> None:
    first = MetricStream([JsonlSink(*paths, done=0)])
    for step in (0, 2, 4):
        first.evaluation(evaluation_row(*SETTINGS, TrainerState(step, 0, 0), [CHAIN], {"eval": 1.0}), "", [RECORD])
        for done in (step + 1, step + 2):
            first.step(row_of(done), [RECORD])
    JsonlSink(*paths, done=1, logged=3)
    assert [(row["step"], is_evaluation(row)) for row in lines(paths[0])] == [(0, True), (1, False), (2, True)]
    assert [(e["step"], e["kind"]) for e in lines(paths[1])] == [(0, "eval"), (1, "train"), (2, "eval")]
    JsonlSink(*paths, done=0, logged=3)
    assert [row["step"] for row in lines(paths[0])] == [0, 2]


@pytest.mark.parametrize("line", ['{"step": 1', "[]", '{"stop": 1}', '{"step": "1"}', "\0", '{"step": true}'])
def test_a_damaged_line_is_reported(paths: tuple[Path, Path], line: str) -> None:
    paths[0].write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(UserError, match=rf"^{paths[0]} is damaged in line 2: delete that line$"):
        list(read_rows(paths[0]))
    paths[0].write_bytes(b'{"step": 1}\n{"step": 2, "text": "\xc3')
    assert list(read_rows(paths[0])) == [{"step": 1}], "truncated within a character"


def test_the_record_of_a_tree() -> None:
    tree = Episode(
        TASK,
        make_node(0, [1.0, 3.0], {0: make_node(1, [4.0, 4.0])}, transitions={0: {}, 1: {}}, levels={"tests": 1.0}),
        [Stop((1,), "infra_error", "gone")],
    )
    assert tree.root is not None
    first, second = tree.root.joint_actions
    tree.root.joint_actions = [
        replace(first, outcome=replace(first.outcome, evidence=Verdict("fine"))),
        replace(second, rewards=(3.0, 2.0)),
    ]
    record = episode_record(tree)
    assert record["task"] == "toy/1"
    assert record["stops"] == [{"path": [1], "reason": "infra_error", "detail": "gone"}]
    root, child = record["nodes"]
    assert root["joint_actions"] == [
        {"indices": [0, 0], "reward": 1.0, "levels": {"tests": 1.0}, "verdict": "fine"},
        {"indices": [1, 1], "reward": 3.0, "levels": {"tests": 1.0}, "rewards": [3.0, 2.0]},
    ]
    assert (root["turn"], root["path"], root["expanded"]) == (1, [], [0, 1])
    assert (child["turn"], child["path"], child["expanded"]) == (2, [0], [])
    assert root["responses"] == [["answer 0.0.0", "answer 0.0.1"], ["answer 0.1.0", "answer 0.1.1"]]
    assert root["weight_versions"] == [[0], [0]]
    assert root["prompts"] == ["prompt 0.0", "prompt 0.1"]
    assert json.loads(json.dumps(record)) == record


def test_the_console_shows_every_nth_step_and_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    stream = MetricStream([ConsoleSink(5, 0, policies=(), num_turns=2, every=2)])
    stream.evaluation(evaluation_row(*SETTINGS, TrainerState(0, 0, 0), [CHAIN], {"eval": 1.0}), "before", [RECORD])
    for step in range(1, 6):
        stream.step(row_of(step), [RECORD])
    stream.close()
    out, err = capsys.readouterr()
    assert out == ""
    legend, evaluation, *steps = err.splitlines()
    assert legend.startswith("reward: mean of each turn")
    assert evaluation == "eval       before | reward  2.00  4.00 | solved 100% | 1.0 s"
    assert [line[:26] for line in steps] == [f"step {n}/5 | reward  2.00  4" for n in (2, 4, 5)]
    assert "| solved 100% |" in steps[0]


def test_the_remaining_time_is_estimated_from_recent_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 1000.0, *(1000.0 + 2.0 * n for n in range(1, 30))])
    monkeypatch.setattr(console, "now", lambda: next(clock))
    shown = ConsoleSink(100, 0, policies=[PolicyId((0,))], num_turns=2, every=1)
    for step in range(1, 31):
        shown.row(row_of(step) | {"agent_0/loss": -1e-9}, "")
    shown.close()
    _, first, *_, last = capsys.readouterr().err.splitlines()
    assert first.endswith("left 27:30:00")
    assert last.endswith("left 2:20")
    assert "| loss  +0.0000 |" in last


def test_the_console_has_no_column_of_tests_without_such_a_metric(capsys: pytest.CaptureFixture[str]) -> None:
    chain = make_episode(make_node(0, [1.0, 3.0], {1: make_node(1, [4.0, 4.0])}))
    stream = MetricStream([ConsoleSink(1, 0, policies=(), num_turns=2, every=1)])
    stream.evaluation(evaluation_row(*SETTINGS, TrainerState(0, 0, 0), [chain], {"eval": 1.0}), "before", [])
    stream.step(step_row(TrainerState(1, 4, 0), rollout_row(*SETTINGS, [chain], [], 4.0, 0), {}, {}, TIMES), [])
    stream.close()
    legend, evaluation, step = capsys.readouterr().err.splitlines()
    assert legend == "reward: mean of each turn; loss: of each agent"
    assert evaluation == "eval       before | reward  2.00  4.00 | 1.0 s"
    assert step.startswith("step 1/1 | reward  2.00  4.00 | loss")


class FailingSink(Sink):
    """A sink whose close raises."""

    def close(self) -> None:
        raise OSError("no")


def test_all_sinks_are_closed_even_if_one_raises() -> None:
    closed = []

    class Watched(FailingSink):
        def close(self) -> None:
            closed.append(self)

    with pytest.raises(OSError, match="no"):
        MetricStream([Watched(), FailingSink(), Watched()]).close()
    assert len(closed) == 2


def test_a_record_without_tests_says_whether_the_task_was_solved() -> None:
    tree = make_episode(make_node(0, [1.0], metrics={"all_passed": 1.0}))
    (action,) = episode_record(tree)["nodes"][0]["joint_actions"]
    assert action["solved"] is True
    assert is_solved(action) is True
    report = {"passed": 1, "total": 2, "tests": []}
    assert is_solved({"report": report}) is False
    assert is_solved({"report": "fine"}) is None
    assert other_evidence(action | {"report": "fine", "said": {}}) == {"report": "fine", "said": {}}
