"""Model names, and limits on `model.max_length`."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from marl_ray.config import ModelConfig
from marl_ray.core.errors import UserError
from marl_ray.models.names import check_model
from marl_ray.toy import BASE_PATH


def test_a_length_beyond_the_models_positions_is_rejected(tmp_path: Path) -> None:
    assert check_model("bundled:toy-base", ModelConfig(max_length=1024))
    with pytest.raises(UserError, match=r"^model.max_length is 1025, but bundled:toy-base has 1024 positions: lower"):
        check_model("bundled:toy-base", ModelConfig(max_length=1025))


def test_scaled_rotary_positions_are_left_to_the_engine(tmp_path: Path) -> None:
    folder = shutil.copytree(BASE_PATH, tmp_path / "stretched")
    settings = json.loads((folder / "config.json").read_text())
    settings["rope_parameters"] = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(settings))
    assert check_model(str(folder), replace(ModelConfig(), max_length=4096))
