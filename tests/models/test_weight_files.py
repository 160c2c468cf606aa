"""Model folders that cannot be learned from are named before anything starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from marl_ray.core.errors import UserError
from marl_ray.models.names import resolve_model
from marl_ray.models.weight_files import check_folder
from marl_ray.toy import BASE_PATH

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BASE_PATH, tmp_path / "m"))


def said(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        check_folder(folder, own_tokenizer=False)
    return str(caught.value)


def test_a_whole_one_passes(folder: Path) -> None:
    check_folder(folder, own_tokenizer=False)


def test_without_tokenizer_or_weights(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert said(folder).startswith("the folder has no tokenizer (tokenizer.json or")
    check_folder(folder, own_tokenizer=True)
    (folder / "tokenizer.json").touch()
    (folder / WEIGHTS).unlink()
    assert said(folder) == "the folder has no weights (*.safetensors)"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_numbers_that_are_not_finite(folder: Path, dtype: torch.dtype, value: float) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS)
    check_folder(folder, own_tokenizer=False)
    name = sorted(tensors)[3]
    tensors[name].view(-1)[5] = value
    save_file(tensors, folder / WEIGHTS)
    assert said(folder) == f"{name} in {WEIGHTS} has NaN or infinity in 1 of {tensors[name].numel()} numbers"


def test_cut_off_or_no_such_file(folder: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:200_000])
    assert said(folder) == f"{WEIGHTS} is cut off: it has 200000 of {len(whole)} bytes"
    (folder / WEIGHTS).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert said(folder).startswith(WEIGHTS)


def test_nobody_s_home_is_one_line() -> None:
    with pytest.raises(UserError, match="there is no user ~nobody-is-called-so"):
        resolve_model("~nobody-is-called-so/m")
