"""Trackers that fail, hang or start late."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marl_ray.telemetry.background_sink import BackgroundSink, BackgroundSinks
from marl_ray.telemetry.sinks import JsonlSink, MetricStream, Sink

RECORD = {"task": "t", "nodes": [], "stops": []}
LONG_S = 600.0
"""A pause or deadline that no test reaches."""


class Tracker(Sink):
    """A tracker that stores rows and fails as `fail` says, given the number of the attempt."""

    def __init__(self, fail: Callable[[int], None] = lambda attempt: None) -> None:
        self.fail, self.attempts = fail, 0
        self.got: list[tuple[int, str]] = []
        self.kinds: list[tuple[int, str]] = []
        self.received = threading.Condition()
        self.closed = False

    def row(self, row: dict[str, Any], name: str) -> None:
        self.attempts += 1
        self.fail(self.attempts)
        with self.received:
            self.got.append((row["step"], name))
            self.received.notify_all()

    def episodes(self, step: int, kind: str, records: Any) -> None:
        self.kinds += [(step, kind)] * len(records)

    def close(self) -> None:
        self.closed = True

    def wait(self, rows: int) -> None:
        with self.received:
            assert self.received.wait_for(lambda: len(self.got) >= rows, LONG_S)


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "metrics.jsonl", tmp_path / "episodes.jsonl"


def stream_of(
    paths: tuple[Path, Path],
    create: Callable[[], Sink],
    flush_s: float = LONG_S,
    pauses_s: tuple[float, ...] = (0.0,),
) -> MetricStream:
    files = JsonlSink(*paths, done=99, logged=99)  # keeps earlier rows
    sink = BackgroundSink("tracker", create, *paths, pauses_s=pauses_s)
    return MetricStream([files, BackgroundSinks([sink], flush_s)])


def test_rows_and_episodes_arrive_in_order(paths: tuple[Path, Path]) -> None:
    tracker = Tracker()
    stream = stream_of(paths, lambda: tracker)
    stream.evaluation({"step": 0, "eval/episodes": 1}, "before", [RECORD])
    for step in (1, 2, 3):
        stream.step({"step": step}, [RECORD] * 2)
    stream.close()
    assert tracker.got == [(0, "eval"), (1, ""), (2, ""), (3, "")]
    assert tracker.kinds == [(0, "eval")] + [(step, "train") for step in (1, 1, 2, 2, 3, 3)]
    assert tracker.closed


def test_a_failing_tracker_warns_once_and_misses_nothing(
    paths: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(attempt: int) -> None:
        if attempt in (1, 2, 5):
            raise (OSError("down"), SystemExit(3), KeyboardInterrupt())[attempt % 3]

    caplog.set_level(logging.INFO)
    tracker = Tracker(fail)
    stream = stream_of(paths, lambda: tracker)
    for step in (1, 2, 3):
        stream.step({"step": step}, [])
    tracker.wait(3)
    stream.close()
    assert tracker.got == [(1, ""), (2, ""), (3, "")]
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    (warning,) = warnings
    assert warning.getMessage().startswith("tracker does not receive metrics (SystemExit: 3): the run goes on")
    assert "tracker receives metrics again" in caplog.messages


def test_pauses_grow_and_the_end_is_bounded(paths: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    """Expect one more attempt from close, during a pause that the test does not wait for."""

    def fail(attempt: int) -> None:
        raise OSError("down")

    tracker = Tracker(fail)
    stream = stream_of(paths, lambda: tracker, pauses_s=(0.0, LONG_S))
    stream.step({"step": 1}, [])
    stream.step({"step": 2}, [])
    while tracker.attempts < 2:
        time.sleep(0.001)
    begun = time.monotonic()
    stream.close()
    assert time.monotonic() - begun < LONG_S / 2
    assert (tracker.attempts, tracker.got) == (3, [])
    assert "tracker has not received 2 rows: metrics.jsonl has all of them" in caplog.messages
    assert [json.loads(line)["step"] for line in paths[0].read_text().splitlines()] == [1, 2]


def test_a_tracker_that_hangs_is_left_behind(paths: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    tracker = Tracker(lambda attempt: (release.wait(), None)[1])
    stream = stream_of(paths, lambda: tracker, flush_s=0.05)
    stream.step({"step": 1}, [])
    stream.close()
    assert "tracker has not received 1 row: metrics.jsonl has all of them" in caplog.messages
    release.set()


def test_a_tracker_that_does_not_start_is_created_again(paths: tuple[Path, Path]) -> None:
    trackers: list[Tracker] = []

    def create() -> Tracker:
        trackers.append(Tracker())
        if len(trackers) < 4:
            raise RuntimeError("no server")
        return trackers[-1]

    stream = stream_of(paths, create)
    stream.step({"step": 1}, [])
    while len(trackers) < 4:
        time.sleep(0.001)
    trackers[3].wait(1)
    stream.close()
    assert trackers[3].got == [(1, "")]


def test_a_resumed_tracker_receives_the_rows_that_it_misses(paths: tuple[Path, Path]) -> None:
    paths[0].write_text("".join(f'{{"step": {step}}}\n' for step in (1, 2, 3)))
    resumed, unaware = Tracker(), Tracker()
    resumed.sent_step = 1
    for tracker in (resumed, unaware):
        stream = stream_of(paths, lambda tracker=tracker: tracker)  # type: ignore[misc]
        stream.step({"step": 4 if tracker is resumed else 5}, [])
        stream.close()
    assert resumed.got == [(2, ""), (3, ""), (4, "")]
    assert unaware.got == [(5, "")]


def test_a_tracker_that_is_created_again_receives_the_evaluation_of_its_last_step(paths: tuple[Path, Path]) -> None:
    rows = ({"step": 1}, {"step": 1, "eval/episodes": 2}, {"step": 2}, {"step": 2, "eval/episodes": 2})
    paths[0].write_text("".join(json.dumps(row) + "\n" for row in rows))
    tracker = Tracker()
    tracker.sent_step = 2
    stream = stream_of(paths, lambda: tracker)
    stream.step({"step": 3}, [])
    stream.close()
    assert tracker.got == [(2, "eval"), (3, "")]


def test_a_line_that_is_being_written_waits(paths: tuple[Path, Path]) -> None:
    tracker = Tracker()
    sink = BackgroundSink("tracker", lambda: tracker, *paths)
    paths[0].write_text('{"step": 1}\n{"st')
    sink.wake()
    tracker.wait(1)
    with paths[0].open("a") as file:
        file.write('ep": 2}\n')
    sink.stop()
    sink.join(LONG_S)
    assert tracker.got == [(1, ""), (2, "")]
