"""Model names, and limits on `model.max_length`."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoConfig

from marl_ray.config import ModelConfig
from marl_ray.core.errors import UserError
from marl_ray.models.names import check_model, check_reference
from marl_ray.toy import BASE_PATH


def test_a_length_beyond_the_models_positions_is_rejected(tmp_path: Path) -> None:
    assert check_model("bundled:toy-base", ModelConfig(max_length=1024))
    with pytest.raises(UserError, match=r"^model.max_length is 1025, but bundled:toy-base has 1024 positions: lower"):
        check_model("bundled:toy-base", ModelConfig(max_length=1025))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "t5"}, "t5 is an encoder-decoder architecture: choose a decoder"),
        ({"model_type": "bart"}, "bart is an encoder-decoder architecture: choose a decoder"),
        ({"model_type": "clip"}, "clip is no causal language model: choose a decoder"),
        ({"hidden_size": 96}, "config.json describes a model in which it is"),
        ({"vocab_size": 256}, r"in model.safetensors is \[\d+, \d+\], but config.json describes .* it is \[256, \d+\]"),
        ({"vocab_size": 99999}, r"it is \[99999, \d+\]: restore the config.json of the weights"),
        ({"intermediate_size": 128}, r"mlp\.\w+\.weight in model.safetensors is"),
    ],
)
def test_a_model_that_no_learner_can_load_is_rejected(change: dict, message: str, tmp_path: Path) -> None:
    folder = shutil.copytree(BASE_PATH, tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | change))
    with pytest.raises(UserError, match=rf"^model {folder} cannot be loaded: .*{message}"):
        check_model(str(folder), ModelConfig())


def test_scaled_rotary_positions_are_left_to_the_engine(tmp_path: Path) -> None:
    folder = shutil.copytree(BASE_PATH, tmp_path / "stretched")
    settings = json.loads((folder / "config.json").read_text())
    settings["rope_parameters"] = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(settings))
    assert check_model(str(folder), replace(ModelConfig(), max_length=4096))


@pytest.mark.plugins("grid")
def test_a_reference_model_has_the_vocabulary_of_the_policy(tmp_path: Path) -> None:
    check_reference("bundled:toy-revising-base", "bundled:toy-base", ModelConfig(max_length=1024))
    with pytest.raises(UserError, match=r"^reference_model bundled:toy-grid-base has another vocabulary than bundled:"):
        check_reference("bundled:toy-grid-base", "bundled:toy-base", ModelConfig(max_length=256))
    with pytest.raises(UserError, match=r"^model.max_length is 1025, but bundled:toy-revising-base has 1024 positions"):
        check_reference("bundled:toy-revising-base", "bundled:toy-base", ModelConfig(max_length=1025))


def test_a_folder_with_a_similar_name_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # the variable is read at the first import
    (tmp_path / "mymodel").mkdir()
    (tmp_path / "mymodel" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"model mymodle cannot be loaded: .*: did you mean mymodel\?"):
        check_model("mymodle", ModelConfig())


def test_a_library_built_for_another_torch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision is a stand-in: the environment of the tests has none."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)

    def fails(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("Could not import module 'Qwen2ForCausalLM'")

    monkeypatch.setattr(AutoConfig, "from_pretrained", fails)
    with pytest.raises(UserError, match=r"^torchvision is built for another torch .*: pip uninstall torchvision torch"):
        check_model("bundled:toy-base", ModelConfig())
