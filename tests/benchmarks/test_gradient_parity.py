"""The marl_ray side of benchmarks/gradient_parity; the comparison itself needs CoMLRL's environment and is run by
hand."""

from __future__ import annotations

import random

import pytest

from benchmarks.gradient_parity import CASES, TASKS, Case, compare, our_gradient, random_tree
from benchmarks.throughput import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("parity") / "model"
    make_model([case.name for case in CASES], folder)
    return str(folder)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_case_has_a_gradient(case: Case, model: str) -> None:
    # The gradient is reproducible for the same trees, and differs for other trees.
    rng = random.Random(0)
    trees, others = ([random_tree(case, rng) for _ in range(TASKS)] for _ in range(2))
    found = our_gradient(case, trees, model)
    assert all(gradient.isfinite().all() for gradient in found.values())
    assert any(gradient.abs().max() > 0 for gradient in found.values())
    assert compare(found, our_gradient(case, trees, model)) == (pytest.approx(1.0), 1.0)
    assert compare(found, our_gradient(case, others, model))[0] < 0.999


def test_marloo_and_magrpo_cases_differ_by_their_factor(model: str) -> None:
    # MARLOO's gradient is G / (G - 1) times MAGRPO's.
    magrpo, marloo = (case for case in CASES if case.name in ("magrpo", "marloo"))
    trees = [random_tree(magrpo, random.Random(1)) for _ in range(TASKS)]
    cosine, ratio = compare(our_gradient(marloo, trees, model), our_gradient(magrpo, trees, model))
    assert cosine == pytest.approx(1.0, abs=1e-6)
    assert ratio == pytest.approx(4 / 3, rel=1e-5)
