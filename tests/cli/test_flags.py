"""The older flags."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from marl_ray.cli.train import train_main

CONFIGS = Path(__file__).parents[2] / "configs"


def test_a_flag_beats_an_override(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", str(CONFIGS / "mt_magrpo_he_config.yaml"), "--dry-run", "--num_turns", "1"]
    arguments += ["--num_epochs", "3", "--model_name", "a/flag", "--override", "magrpo.num_train_epochs=9"]
    arguments += ["magrpo.num_turns=2", "model_name=an/override", "model.name=another/override"]
    assert train_main("magrpo", arguments) == 0
    out, err = capsys.readouterr()
    printed = yaml.safe_load(out)
    assert printed["model"]["name"] == "a/flag"
    assert (printed["magrpo"]["num_train_epochs"], printed["magrpo"]["num_turns"]) == (3, 1)
    assert err.startswith("note: magrpo.num_turns is 1")


def test_a_mistake_among_the_flags_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        train_main("magrpo", ["--num_turns", "two"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err == "error: argument --num_turns: invalid int value: 'two' (--help shows what there is)\n"
