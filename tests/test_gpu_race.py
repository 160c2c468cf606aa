"""The race kit on a CPU with tiny models, so that it works when a GPU is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def race(folder: Path, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    """Return the rows and the output of a race."""
    command = [sys.executable, "-m", "benchmarks.gpu_race", "--cpu", "--out", str(folder), *arguments]
    ended = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, encoding="utf-8", timeout=580)
    lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines], ended.stdout


@pytest.mark.slow
def test_every_part_of_the_race_runs_on_a_cpu(tmp_path: Path) -> None:
    parts = ("ceilings", "models", "learner", "engine", "pair", "profile")
    rows, output = race(tmp_path, "--only", *parts)
    measured = {(row["part"], row["case"]): row["measured"] for row in rows}
    assert not any("failed" in numbers for numbers in measured.values()), measured
    assert {row["part"] for row in rows} == {*parts}
    assert {row["machine"]["card"] for row in rows} == {"CPU"}
    assert measured["models", "tiny"]["parameters"] > 100_000
    for residency in ("fractions", "turns"):
        phases = measured["pair", f"tiny {residency}"]
        assert phases["step"] > 0
        assert phases["rollout"] > 0
    assert next(case for part, case in measured if part == "profile") == "tiny"
    assert output.count("\npair ") == 2


@pytest.mark.slow
@pytest.mark.nightly
def test_the_references_usual_run_has_two_turns(tmp_path: Path) -> None:
    rows, _ = race(tmp_path, "--only", "models", "reference")
    assert [row["measured"].get("turns") for row in rows] == [None, 2]


def test_a_part_that_fails_or_has_no_time_does_not_stop_the_next(tmp_path: Path) -> None:
    rows, _ = race(tmp_path, "--only", "learner", "ceilings", "models", "--budget", "60")
    failures = [row for row in rows if "failed" in row["measured"]]
    assert [row["part"] for row in failures] == ["learner"]
    assert "run the part models first" in failures[0]["measured"]["failed"]
    assert {row["part"] for row in rows} == {"learner", "ceilings", "models"}
    rows, _ = race(tmp_path, "--only", "ceilings", "--budget", "1")
    assert rows[-1]["measured"] == {"failed": "no time was left"}
