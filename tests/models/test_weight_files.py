"""Incomplete or invalid model folders are rejected before a run starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from marl_ray.core.errors import UserError
from marl_ray.models.names import resolve_model
from marl_ray.models.weight_files import INDEX, check_folder
from marl_ray.toy import BASE_PATH

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BASE_PATH, tmp_path / "m"))


def error_of(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        check_folder(folder, own_tokenizer=False)
    return str(caught.value)


def test_a_complete_folder_passes(folder: Path) -> None:
    check_folder(folder, own_tokenizer=False)


def test_a_folder_without_tokenizer_or_weights_is_rejected(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert error_of(folder).startswith("the folder has no tokenizer (tokenizer.json or")
    check_folder(folder, own_tokenizer=True)
    (folder / "tokenizer.json").write_text("{}")
    (folder / WEIGHTS).unlink()
    assert error_of(folder) == "the folder has no weights (*.safetensors)"


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", INDEX])
def test_a_truncated_json_file_is_named(folder: Path, name: str) -> None:
    (folder / name).write_text("{")
    assert error_of(folder).startswith(f"{name} is cut off or not JSON (")
    (folder / name).write_text("[]")
    assert error_of(folder) == f"{name} is not a JSON object: download it again"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_weights_that_are_not_finite_are_rejected(folder: Path, dtype: torch.dtype, value: float) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS)
    check_folder(folder, own_tokenizer=False)
    name = sorted(tensors)[3]
    tensors[name].view(-1)[5] = value
    save_file(tensors, folder / WEIGHTS)
    assert error_of(folder) == f"{name} in {WEIGHTS} has NaN or infinity in 1 of {tensors[name].numel()} numbers"


def test_a_truncated_or_foreign_file_is_rejected(folder: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:200_000])
    assert error_of(folder).startswith(f"{WEIGHTS} is cut off or not a safetensors file: ")
    (folder / WEIGHTS).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert error_of(folder).startswith(f"{WEIGHTS} is cut off or not a safetensors file: ")


def test_an_unknown_home_folder_is_one_line() -> None:
    with pytest.raises(UserError, match="there is no user ~no-such-user"):
        resolve_model("~no-such-user/m")
