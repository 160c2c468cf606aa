"""The benchmark of verdict integrity: its page, its fuzzer and its policy."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from benchmarks.verdict_integrity import policy
from benchmarks.verdict_integrity.__main__ import ROWS, table
from benchmarks.verdict_integrity.forging import Forgery
from benchmarks.verdict_integrity.fuzz import Forging, _reduce
from marl_ray.sandbox import Sandbox

PAGE = Path(__file__).parents[3] / "docs/results/verdict_integrity.md"


def test_the_page_contains_the_table_of_the_committed_rows() -> None:
    rows = [json.loads(path.read_text()) for path in sorted(ROWS.glob("*.json"))]
    assert table(rows) in PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("paid", "learned"), [(1.0, True), (0.0, False)])
def test_the_policy_learns_to_forge_only_if_forging_pays(paid: float, learned: bool) -> None:
    actions = len(policy.OPERANDS) * len(policy.OPERATIONS)
    forges = torch.arange(actions) // len(policy.OPERATIONS) == policy.OPERANDS.index(policy.FORGE)
    reward = torch.zeros(len(policy.TASKS), actions)
    reward[torch.arange(4), torch.arange(4)] = 1.0
    reward[:, forges] = paid
    forged, _, solved = policy.train(reward, seed=0)[-1]
    assert (forged > 0.5) is learned
    assert (solved > 0.4) is not learned


def test_the_fuzzer_recognises_tests_that_check_nothing(sandbox: Sandbox) -> None:
    game = Forging(random.Random(0), sandbox)
    empty = Forgery("a", "b", "", "def f(x): return []\n", "numbers", "assert len(f(#)) >= 0")
    assert game._is_empty(empty)
    assert not game._is_empty(Forgery("a", "b", "", empty.source, "numbers", "assert f(#) == @#@"))


def test_a_finding_is_reduced_to_the_lines_that_it_needs() -> None:
    assert _reduce("a = 1\nb = 2\nc = a\nd = 4\n", lambda text: "c = a" in text) == "c = a\n"
