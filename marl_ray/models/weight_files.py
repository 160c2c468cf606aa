"""Checks of a model folder before a run: its files are complete, and its weights are finite and fit its config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from marl_ray.core.errors import UserError

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
INDEX = "model.safetensors.index.json"
JSON_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", INDEX)
SHARDS = "shards"
"""Folder in a checkpoint in which the ranks of a learner write their shards."""
TRAINED_FILE = "trained.json"
"""File in a trained model's folder with the number of training steps."""
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
"""Tokenizer files, of which a model folder has at least one."""
MAX_CHECKED_BYTES = 2 << 30
"""Larger weights are not checked for NaN and infinity, because reading them takes too long before a run."""
CHECKED_DTYPES = {"F64", "F32", "F16", "BF16"}


def has_model_files(path: Path) -> bool:
    """Return whether a folder exists and has weights or a tokenizer, and not just a config.json."""
    if not path.is_dir():
        return False
    return any(file.suffix in WEIGHTS or file.name in TOKENIZERS for file in path.iterdir())


def check_folder(path: Path, own_tokenizer: bool) -> None:
    """Raise UserError if a model folder has no tokenizer, or incomplete or infinite weights.

    `own_tokenizer`: the model brings code that loads its tokenizer.
    """
    from safetensors import SafetensorError

    if not own_tokenizer and not any((path / name).exists() for name in TOKENIZERS):
        raise UserError(f"the folder has no tokenizer ({TOKENIZERS[0]} or {TOKENIZERS[1]}): save it there too")
    if not any(file.suffix in WEIGHTS for file in path.iterdir()):
        raise UserError("the folder has no weights (*.safetensors)")
    for name in JSON_FILES:
        if not (path / name).exists():
            continue
        content = _read_json(path / name)
        if name != INDEX:
            continue
        for shard in sorted(set(content.get("weight_map", {}).values())):
            if not (path / shard).exists():
                raise UserError(f"the folder has no {shard}, which {INDEX} names")
    files = sorted(path.glob("*.safetensors"))
    check_values = sum(file.stat().st_size for file in files) <= MAX_CHECKED_BYTES
    for file in files:
        try:
            _check_file(file, check_values)
        except SafetensorError as error:
            raise UserError(f"{file.name} is cut off or not a safetensors file: {error}") from None


def _read_json(file: Path) -> Any:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file.name} is cut off or not JSON ({error}): download it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{file.name} is not a JSON object: download it again")
    return content


def stored_dtypes(path: Path) -> set[Any]:
    """Return the torch dtypes of the floating-point weights in the folder's safetensors files, from their headers.

    An 8-bit type counts as float32.
    """
    import torch
    from safetensors import safe_open

    known = {"BF16": torch.bfloat16, "F16": torch.float16}
    found = set()
    for file in path.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                found.add(tensors.get_slice(name).get_dtype())
    # Names of integer types have no F.
    return {known.get(name, torch.float32) for name in found if "F" in name}


def check_shapes(path: Path, settings: Any) -> None:
    """Raise UserError if a weight in the folder has another shape than in the model of `settings` (config.json).

    Skips quantised weights, and names that only the files or only the model have: transformers renames some on loading.
    """
    import torch
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    if getattr(settings, "quantization_config", None) is not None:
        return
    with torch.device("meta"):  # takes no memory
        model = AutoModelForCausalLM.from_config(settings)
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in sorted(tensors.keys()):
                shape = tensors.get_slice(name).get_shape()
                if name in shapes and shape != shapes[name]:
                    raise UserError(
                        f"{name} in {file.name} is {shape}, but config.json describes a model in which it is "
                        f"{shapes[name]}: restore the config.json of the weights"
                    )


def load_trained_model(folder: Path, base: str) -> tuple[Any, Any]:
    """Return the model in a folder and its tokenizer. A folder with a LoRA adapter is loaded on top of `base`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (folder / "adapter_config.json").exists():
        return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    from peft import PeftModel

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(folder))
    return model, AutoTokenizer.from_pretrained(folder)


def _check_file(file: Path, check_values: bool) -> None:
    """Read the header, which safetensors compares with the file's size, and optionally all values."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as tensors:
        if not check_values:
            return
        for name in tensors.keys():  # noqa: SIM118 (not a mapping)
            if tensors.get_slice(name).get_dtype() not in CHECKED_DTYPES:
                continue
            tensor = tensors.get_tensor(name)
            bad = int((~tensor.isfinite()).sum())
            if bad:
                raise UserError(f"{name} in {file.name} has NaN or infinity in {bad} of {tensor.numel()} numbers")
