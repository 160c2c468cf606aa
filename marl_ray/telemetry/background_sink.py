"""Trackers on threads of their own: a tracker that fails or hangs neither ends nor delays a run.

    JsonlSink --> metrics.jsonl, episodes.jsonl --> one thread per tracker --> Sink.row, Sink.episodes

The buffer of a tracker is the run folder itself: the thread reads the lines that the tracker has not received yet, so
an outage of any length loses no row and needs no memory. After a failure the same line is sent again, after pauses of
`PAUSES_S`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_ray.core.text import pluralize
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.sinks import Sink, is_evaluation, parse_row

logger = logging.getLogger(__name__)

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Pauses before the first and further retries; the last one repeats."""
REOPEN_AFTER = 3
"""Number of failures in a row after which a tracker is created again."""
FLUSH_S = 30.0
"""Maximum time that all trackers together have at the end of a run."""


class BackgroundSinks(Sink):
    """Trackers of one run, each on its own thread. `close` takes at most `flush_s`."""

    def __init__(self, sinks: Sequence[BackgroundSink], flush_s: float = FLUSH_S) -> None:
        self._sinks = sinks
        self._flush_s = flush_s

    def row(self, row: MetricRow, name: str) -> None:
        """Wake the threads, which read the row from its file."""
        for sink in self._sinks:
            sink.wake()

    def close(self) -> None:
        """Send the remaining rows, and warn of trackers that have not received all rows."""
        deadline = time.monotonic() + self._flush_s
        for sink in self._sinks:
            sink.stop()
        for sink in self._sinks:
            sink.join(max(0.0, deadline - time.monotonic()))


class BackgroundSink:
    """One tracker and its thread. `create` is called on the thread, and again after repeated failures."""

    def __init__(
        self,
        name: str,
        create: Callable[[], Sink],
        metrics: Path,
        episodes: Path,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self.name = name
        self._create = create
        self._pauses_s = pauses_s
        self._rows = _UnreadLines(metrics)
        self._episodes = _UnreadLines(episodes)
        self._sink: Sink | None = None
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._abandoned = False
        """Set at the end of the time for the last rows: the thread makes no further attempt."""
        self._warned = False
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._wake.set()  # creates the tracker at once
        self._thread.start()

    def wake(self) -> None:
        """Tell the thread that there are new lines."""
        self._wake.set()

    def stop(self) -> None:
        """Let the thread send all lines, close the tracker and end. After a failure it makes one more attempt."""
        self._stop.set()
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, at most `timeout_s`. Warn if the tracker has not received all rows."""
        self._thread.join(timeout_s)
        self._abandoned = True
        missing = sum(1 for _ in self._rows.read())  # changes nothing
        if missing:
            rows = pluralize(missing, "row")
            logger.warning(f"{self.name} has not received {rows}: {self._rows.path.name} has all of them")
        elif self._thread.is_alive():
            logger.warning(f"{self.name} has not confirmed its end within {timeout_s:.0f} s")

    def _run(self) -> None:
        failures = 0
        while not self._abandoned:
            stopping = self._stop.is_set()
            try:
                self._send_unread(stopping)
            except BaseException as error:  # a tracker may raise anything, including SystemExit
                failures += 1
                if not self._abandoned:
                    self._warn(error)
                if failures % REOPEN_AFTER == 0:
                    self._sink = None
                if not stopping:
                    self._stop.wait(self._pauses_s[min(failures, len(self._pauses_s)) - 1])
            else:
                if failures:
                    logger.info(f"{self.name} receives metrics again")
                failures = 0
                if not stopping:
                    self._wake.wait()
                    self._wake.clear()
            if stopping:
                return

    def _send_unread(self, stopping: bool) -> None:
        """Send every line that the tracker has not received."""
        if self._sink is None:
            self._sink = self._create()
            if self._sink.sent_step is not None:
                self._rows.rewind(self._sink.sent_step)
        for end, row in self._rows.read():
            self._sink.row(row, "eval" if is_evaluation(row) else "")
            self._rows.position = end
        if type(self._sink).episodes is not Sink.episodes:
            for end, record in self._episodes.read():
                step = record.pop("step")
                kind = record.pop("kind")
                self._sink.episodes(step, kind, [record])
                self._episodes.position = end
        if stopping:
            self._sink.close()

    def _warn(self, error: BaseException) -> None:
        if not self._warned:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            logger.warning(
                f"{self.name} does not receive metrics ({reason}): the run goes on, {self._rows.path.name} has every "
                "row, and sending is retried"
            )
        self._warned = True


class _UnreadLines:
    """The lines of a growing JSON Lines file behind `position`, at first its end. A file may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = path.stat().st_size if path.exists() else 0
        """End of the last line that the tracker has received."""
        self._sent_step: int | None = None
        """Lines up to this step are skipped, except for an evaluation of this step, which follows its training row: the
        tracker may have received one of the two."""

    def rewind(self, sent_step: int) -> None:
        """Continue behind the last line up to `sent_step`, from the start of the file."""
        self.position = 0
        self._sent_step = sent_step

    def read(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the end and the object of each complete line."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.position)
            while True:
                line = file.readline()
                if not line.endswith(b"\n"):
                    return  # the end, or a line that is being written
                row = parse_row(line)
                if row is not None and not self._is_sent(row):
                    yield file.tell(), row

    def _is_sent(self, row: Mapping[str, Any]) -> bool:
        if self._sent_step is None or row["step"] > self._sent_step:
            return False
        return row["step"] < self._sent_step or not is_evaluation(row)
