"""Trackers never change a run: weights with all sinks on, off, and failing at random."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import pytest

from tests.end_to_end.helpers import QUICK, rows, train, without_times
from tests.plugins.report.traces import check_trace

SMALL = [
    *QUICK,
    "magrpo.max_steps=3",
    "magrpo.save_steps=2",
    "magrpo.rollout_buffer_size=4",
    "magrpo.num_generations=8",
    "magrpo.eval_num_samples=2",
    "output.run_name=r",
]
FLAKY = '''
import os, random, threading, time, urllib.request
from pathlib import Path

from marl_ray.telemetry.sinks import Sink

DICE = random.Random(int(os.environ["DICE"]))


class Flaky(Sink):
    """Fails when it starts, in a third of the rows, and at its end."""

    def __init__(self, config, run_dir):
        self.file = run_dir.parent / "flaky.txt"
        if DICE.random() < 0.5:
            raise SystemExit("no server")

    def row(self, row, name):
        if DICE.random() < 0.4:
            raise random.choice([OSError, KeyboardInterrupt, MemoryError])("killed")
        with self.file.open("a") as file:
            file.write(f"{row['step']}{name} ")

    def close(self):
        raise OSError("killed")


class Hanging(Flaky):
    """Never returns."""

    def __init__(self, config, run_dir):
        threading.Event().wait()


class Scraper(Sink):
    """Scrapes the Prometheus endpoint of its own run, which closes at the end while last rows are on their way."""

    def __init__(self, config, run_dir):
        self.url = f"http://127.0.0.1:{config.output.prometheus_port}/metrics"
        self.file = run_dir.parent / "scraped.txt"

    def row(self, row, name):
        try:
            self.file.write_bytes(urllib.request.urlopen(self.url, timeout=60).read())
        except OSError:
            if not self.file.exists():
                raise
'''


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def weights(run_dir: Path) -> dict[str, str]:
    """Return the digest of each trained model."""
    files = sorted((run_dir / "models").rglob("*.safetensors"))
    assert len(files) == 2
    return {str(file.relative_to(run_dir)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.slow
@pytest.mark.nightly
def test_weights_are_equal_with_all_trackers_none_and_failing_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flaky.py").write_text(FLAKY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("DICE", "7")
    with socket.socket() as taken:  # a port that the third run cannot open
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = {"none": None, "all": free_port(), "killed": taken.getsockname()[1]}
        sinks = {"none": "[]", "all": "[tensorboard, 'flaky:Scraper']", "killed": "['flaky:Flaky', 'flaky:Hanging']"}
        found = {}
        for name, chosen in sinks.items():
            port = "null" if ports[name] is None else ports[name]
            own = [f"output.base_dir={tmp_path / name}", f"output.sinks={chosen}", f"output.prometheus_port={port}"]
            result = train(*SMALL, *own, timeout=600)
            assert result.returncode == 0, result.stderr
            found[name] = result.stderr
    runs = {name: tmp_path / name / "r" for name in sinks}
    assert weights(runs["none"]) == weights(runs["all"]) == weights(runs["killed"])
    for kind in ("step", "eval"):
        truth = [without_times(row) for row in rows(runs["none"], kind)]
        assert [[without_times(row) for row in rows(runs[name], kind)] for name in ("all", "killed")] == [truth, truth]
    assert [row["step"] for row in rows(runs["none"], "step")] == [1, 2, 3]
    assert "does not receive metrics" not in found["all"]
    for name in ("prometheus", "flaky:Flaky"):
        assert found["killed"].count(f"{name} does not receive metrics") == 1
    assert "flaky:Hanging has not received 5 rows: metrics.jsonl has all of them" in found["killed"]
    scraped = (tmp_path / "all" / "scraped.txt").read_text()
    assert 'marl_ray_sequences_in_flight{policy="agent_0"}' in scraped
    assert 'marl_ray_lost_actors{kind="generator"} 0.0' in scraped
    check_trace(runs["none"])
