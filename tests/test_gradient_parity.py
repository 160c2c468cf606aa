"""benchmarks/gradient_parity: the side that is ours, whose numbers CoMLRL's are held against. The other side needs an
environment of its own, so the comparison itself is run by hand."""

from __future__ import annotations

import random

import pytest

from benchmarks.gradient_parity import CASES, TASKS, Case, compare, grow, our_gradient
from benchmarks.throughput import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("parity") / "model"
    make_model([case.name for case in CASES], folder)
    return str(folder)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_case_has_a_gradient(case: Case, model: str) -> None:
    """Twice the same of the same trees, and another of others."""
    rng = random.Random(0)
    trees, others = ([grow(case, rng) for _ in range(TASKS)] for _ in range(2))
    found = our_gradient(case, trees, model)
    assert all(gradient.isfinite().all() for gradient in found.values())
    assert any(gradient.abs().max() > 0 for gradient in found.values())
    assert compare(found, our_gradient(case, trees, model)) == (pytest.approx(1.0), 1.0)
    assert compare(found, our_gradient(case, others, model))[0] < 0.999


def test_a_case_knows_its_marloo_from_its_magrpo(model: str) -> None:
    """G / (G - 1) times as long, in the same direction."""
    magrpo, marloo = (case for case in CASES if case.name in ("magrpo", "marloo"))
    trees = [grow(magrpo, random.Random(1)) for _ in range(TASKS)]
    cosine, ratio = compare(our_gradient(marloo, trees, model), our_gradient(magrpo, trees, model))
    assert cosine == pytest.approx(1.0, abs=1e-6)
    assert ratio == pytest.approx(4 / 3, rel=1e-5)
