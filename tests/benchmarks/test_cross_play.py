"""The cost of strangers, from rows of cross-play."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cross_play import (
    RESULTS,
    WITH_PARTNERS,
    WITHOUT_PARTNERS,
    cost_of_strangers,
    main,
    rewards_of,
)
from benchmarks.learning.measures import read_lines


def test_a_stranger_costs_the_rewards_of_own_pairs_less_foreign_ones() -> None:
    rewards = {("a", "a"): 3.0, ("b", "b"): 2.0, ("a", "b"): 2.0, ("b", "a"): 1.0}
    assert cost_of_strangers(rewards, ["a", "b"]) == pytest.approx(2.5 - 1.5)


def test_the_page_has_the_costs_of_the_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = read_lines(RESULTS / "evaluations.jsonl")
    models = {*WITH_PARTNERS, *WITHOUT_PARTNERS}
    assert set(rewards_of(rows, 1)) == {(helper, entry) for helper in models for entry in models}
    (tmp_path / "evaluations.jsonl").write_bytes((RESULTS / "evaluations.jsonl").read_bytes())
    main(["--results", str(tmp_path)])
    first, second = capsys.readouterr().out.splitlines()
    assert "costs 0.19" in first
    assert "costs 0.05" in second
    page = (RESULTS / "conventions.md").read_text(encoding="utf-8")
    assert "costs 0.19 points in turn 1" in page
    assert "and 0.05 in turn 2" in page
    assert (tmp_path / "conventions.png").stat().st_size > 10_000
