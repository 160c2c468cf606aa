"""A warm start of SmolLM2-135M, a chat model, on a few joint answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marl_ray.cli.main import main
from marl_ray.config.loader import load
from marl_ray.data.loading import load_rows
from marl_ray.models.names import check_model
from tests.factories import QUICKSTART

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.real_model]


def test_smollm2_learns_the_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = load_rows("bundled:toy", "train[:10]")
    answers = tmp_path / "answers.jsonl"
    lines = ({"task_id": r["task_id"], "completions": [r["aux_solution"], r["main_solution"]]} for r in rows)
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = ["--config", str(QUICKSTART), "--answers", str(answers), "--to", str(tmp_path / "warm")]
    training = ["--epochs", "1", "--batch-size", "4", "--learning-rate", "5e-5", "--held-out", "0.2"]
    model = ["--override", "model.name=bundled:smollm2-135m", "magrpo.policy=0"]
    assert main(["warmstart", *source, *training, *model]) == 0
    out, err = capsys.readouterr()
    assert "policy_0: 20 demonstrations, 4 of them held out" in err
    before, after = (float(word) for word in out.split("policy_0 ")[1].split(" nats")[0].split(" to "))
    assert after < 0.8 * before
    config = load(tmp_path / "warm" / "config.yaml", "magrpo")
    assert config.model.use_chat_template is True
    assert check_model(config.agents[1].name, config.model)[0]
