"""The marl_ray side of benchmarks/trainer_parity; the comparison itself needs CoMLRL's environment."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from benchmarks.throughput import make_model
from benchmarks.trainer_parity import CASES, WORDS, Case, make_texts, our_update, random_head, random_node


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("parity") / "model"
    make_model([" ".join(WORDS)], folder)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_case_has_a_gradient(case: Case, model: str) -> None:
    rng = random.Random(0)
    head = random_head(json.loads((Path(model) / "config.json").read_text())["hidden_size"])
    update, gradients = our_update(case, [random_node(case, rng)], make_texts(rng), head, model)
    update()
    found = gradients()
    assert all(gradient.isfinite().all() for gradient in found.values())
    assert any(gradient.abs().max() > 0 for gradient in found.values())
    assert any("critic" in name for name in found) == (case.critic != "none")
