"""The primary family of benchmarks/learning: exact tests by hand-computed examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import primary_tests
from benchmarks.learning.__main__ import RESULTS, current
from benchmarks.learning.primary import PRIMARY, Comparison, primary_table
from benchmarks.learning.studies import TOY_PRIMARY


def test_differences_are_paired_by_seed_and_of_levels_or_gains() -> None:
    def line(arm: str, seed: int, before: float, after: float) -> dict[str, object]:
        return {"arm": arm, "seed": seed, "before": {"passed": before}, "after": {"passed": after}}

    lines = [line("a", 1, 0.1, 0.5), line("a", 2, 0.1, 0.6), line("b", 2, 0.3, 0.4), line("b", 1, 0.2, 0.3)]
    level = Comparison("level", "a", "b")
    gain = Comparison("gain", "a", "b", gain=True, exploratory=True)
    assert level.differences([*lines, line("b", 3, 0.0, 0.0)]) == pytest.approx([0.2, 0.2])
    assert gain.differences(lines) == pytest.approx([0.3, 0.4])
    *_, row = primary_table(lines, [level, Comparison("not run", "a", "c")]).splitlines()
    assert row == "| level | 2 | +0.200 ± 0.000 | 2 of 2 | 0.500 | 1.000 |"
    *_, row = primary_table(lines, [level, gain]).splitlines()
    assert row == "| gain | 2 | +0.350 ± 0.635 | 2 of 2 | 0.500 |  |", "an exploratory comparison corrects nothing"


def test_the_primary_family_is_small_and_of_existing_arms() -> None:
    assert sum(not one.exploratory for one in PRIMARY) == 4
    assert {arm for one in PRIMARY for arm in (one.arm, one.other)} <= TOY_PRIMARY.arms.keys()


def test_the_page_has_the_table_of_the_primary_family() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "results" / "who_learns.md"
    assert primary_table(current(TOY_PRIMARY, RESULTS), PRIMARY) in page.read_text(encoding="utf-8")


def test_the_index_has_the_announced_tests_of_five_pages() -> None:
    assert primary_tests.table() in (RESULTS.parent / "index.md").read_text(encoding="utf-8")
