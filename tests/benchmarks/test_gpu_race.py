"""The race kit on a CPU with tiny models, so that it works when a GPU is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_race.environment import environment
from benchmarks.gpu_race.parts import COMLRL, FIRST_CALL, PARTS, SECOND_CALL, TRL, Peer, not_installed
from benchmarks.gpu_race.table import ratios
from benchmarks.gpu_race.tasks import PROMPTS, second_prompt
from marl_ray.core.episode import Task
from marl_ray.external.modes import Message
from marl_ray.external.transition import next_prompt

ROOT = Path(__file__).parents[2]
PEERS_PYTHON = os.environ.get("MARL_RAY_PEERS_PYTHON", sys.executable)
"""Interpreter with CoMLRL and TRL."""


def race(folder: Path, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    """Return the rows and the output of a race."""
    command = [sys.executable, "-m", "benchmarks.gpu_race", "--cpu", "--out", str(folder), *arguments]
    ended = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, encoding="utf-8", timeout=590)
    lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines], ended.stdout


def measured_by_case(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["part"], row["case"]): row["measured"] for row in rows}


def skip_without(peer: Peer) -> None:
    """Skip the test if the peers' interpreter lacks a package."""
    command = [PEERS_PYTHON, "-c", f"import importlib.metadata as m; m.version({peer.package!r})"]
    if subprocess.run(command, capture_output=True, timeout=60).returncode:
        pytest.skip(f"{peer.requirement} is not installed in MARL_RAY_PEERS_PYTHON ({PEERS_PYTHON})")


@pytest.mark.slow
@pytest.mark.nightly
def test_every_part_of_the_race_runs_on_a_cpu(tmp_path: Path) -> None:
    parts = ("ceilings", "models", "learner", "engine", "pair", "profile")
    rows, output = race(tmp_path, "--only", *parts)
    measured = measured_by_case(rows)
    assert not any("failed" in numbers for numbers in measured.values()), measured
    assert {row["part"] for row in rows} == {*parts}
    assert {row["machine"]["card"] for row in rows} == {"CPU"}
    assert measured["models", "tiny"]["parameters"] > 100_000
    for residency in ("resident", "turns"):
        phases = measured["pair", f"tiny {residency}"]
        assert phases["step"] > 0
        assert phases["rollout"] > 0
        assert phases["joint_samples"] == 4
        assert phases["completion_tokens"] == 8
    assert next(case for part, case in measured if part == "profile") == "tiny"
    assert output.count("\npair ") == 2
    assert output.count(": whole step / bare parts: ") == 2


@pytest.mark.slow
@pytest.mark.nightly
def test_the_references_usual_run_is_a_full_tree_of_two_turns(tmp_path: Path) -> None:
    rows, _ = race(tmp_path, "--only", "models", "reference")
    measured = measured_by_case(rows)["reference", "tiny stream"]
    assert measured["turns"] == 2
    assert measured["joint_samples"] == 2 * (2 + 2 * 2)  # tasks, and G + G * G joint samples of each


@pytest.mark.slow
@pytest.mark.nightly
def test_the_pair_of_tags_has_its_own_sizes(tmp_path: Path) -> None:
    rows, _ = race(tmp_path, "--only", "models", "tags")
    measured = measured_by_case(rows)
    for residency in ("resident", "turns"):
        assert measured["tags", f"tiny {residency}"]["completion_tokens"] == 4
        assert measured["tags", f"tiny {residency}"]["joint_samples"] == 4


@pytest.mark.slow
def test_comlrl_does_the_work_of_a_pair_and_of_the_references_run(tmp_path: Path) -> None:
    skip_without(COMLRL)
    parts = ("models", "comlrl", "comlrl_reference")
    rows, _ = race(tmp_path, "--peers-python", PEERS_PYTHON, "--only", *parts)
    measured = measured_by_case(rows)
    assert not any("failed" in numbers for numbers in measured.values()), measured
    for part, joint_samples in (("comlrl", 2), ("comlrl_reference", 2 + 2 * 2)):
        for number in (1, 2, 3):
            prompt = measured[part, f"tiny prompt {number}"]
            assert prompt["joint_samples"] == joint_samples
            assert prompt["completion_tokens"] == 8
            assert 0 < prompt["rollout"] + prompt["learn"] <= prompt["s"]


@pytest.mark.slow
def test_trl_does_the_work_of_one_agent(tmp_path: Path) -> None:
    skip_without(TRL)
    rows, _ = race(tmp_path, "--peers-python", PEERS_PYTHON, "--only", "models", "trl")
    measured = measured_by_case(rows)["trl", "tiny"]
    assert measured["samples"] == 4
    assert measured["completion_tokens"] == 8
    assert "CPU" in measured["sampled_with"]


@pytest.mark.slow
def test_a_peer_that_is_not_installed_has_a_row_with_what_to_install(tmp_path: Path) -> None:
    if find_spec("comlrl") or find_spec("trl"):
        pytest.skip("a peer is installed here")
    parts = ("comlrl", "comlrl_reference", "trl")
    rows, _ = race(tmp_path, "--only", *parts)
    reasons = {row["part"]: row["measured"]["failed"] for row in rows}
    assert reasons == {
        "comlrl": not_installed(COMLRL),
        "comlrl_reference": not_installed(COMLRL),
        "trl": not_installed(TRL),
    }
    rows, _ = race(tmp_path, "--peers-python", str(tmp_path / "python"), "--only", "trl")
    assert "check --peers-python" in rows[-1]["measured"]["failed"]


@pytest.mark.slow
def test_a_part_that_fails_or_has_no_time_does_not_stop_the_next(tmp_path: Path) -> None:
    rows, _ = race(tmp_path, "--only", "learner", "ceilings", "models", "--budget", "120")
    failures = [row for row in rows if "failed" in row["measured"]]
    assert [row["part"] for row in failures] == ["learner"]
    assert "run the part models first" in failures[0]["measured"]["failed"]
    assert {row["part"] for row in rows} == {"learner", "ceilings", "models"}
    rows, _ = race(tmp_path, "--only", "ceilings", "--budget", "1")
    assert rows[-1]["measured"] == {"failed": "no time was left: raise --budget"}


def test_each_call_fits_ten_minutes() -> None:
    assert sum(part.limit_s for part in FIRST_CALL.values()) <= 580
    assert sum(part.limit_s for part in SECOND_CALL.values()) <= 580
    assert {*PARTS} - {*FIRST_CALL, *SECOND_CALL} == {"tags"}


def test_both_sides_have_the_same_second_prompt() -> None:
    instruction = environment.revisions(Task("task", PROMPTS[0], {}))[0]
    assert next_prompt(PROMPTS[0], None, Message(), instruction) == second_prompt(PROMPTS[0])


def row(part: str, case: str, card: str = "CPU", **measured: Any) -> dict[str, Any]:
    return {"part": part, "case": case, "machine": {"card": card}, "measured": measured}


def test_ratios_compare_equal_work_on_one_card() -> None:
    lines = ratios(
        [
            row("learner", "tiny", card="another", s_per_update=100.0),
            row("learner", "tiny", s_per_update=0.5),
            row("engine", "tiny", s_per_step=1.5),
            row("pair", "tiny turns", model="tiny", turns=1, step=8.0, s_per_joint_sample=2.0),
            row("reference", "tiny turns", model="tiny", turns=2, step=9.0, s_per_joint_sample=3.0),
            row("comlrl", "tiny prompt 1", model="tiny", turns=1, s_per_joint_sample=30.0),
            row("comlrl", "tiny prompt 2", model="tiny", turns=1, s_per_joint_sample=10.0),
            row("comlrl", "", failed="it took longer than 9 s"),
            row("trl", "tiny", model="tiny", s_per_sample=2.0),
        ]
    )
    assert [line.removeprefix("ratio").strip() for line in lines] == [
        "pair tiny turns: whole step / bare parts: 2",
        "pair tiny turns: CoMLRL / ours, seconds per joint sample: 5",
        "pair tiny turns: TRL / ours, seconds per joint sample: 2",
        "reference tiny turns: whole step / bare parts: the parts engine and learner have no row of this work",
        "reference tiny turns: CoMLRL / ours, seconds per joint sample: CoMLRL has no row of this work",
        "reference tiny turns: TRL / ours, seconds per joint sample: TRL has no row of this work",
    ]
