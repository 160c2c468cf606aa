"""Model folders: whether what is in one can be loaded and learned from, as far as that can be seen before a run.

Weights are read as the safetensors format lays them out (8 bytes with the header's length, a JSON header, the data), so
that no tensor is made and no library is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_ray.core.errors import UserError

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
INDEX = "model.safetensors.index.json"
SHARDS = "shards"
"""In a checkpoint, the folder where the ranks of a learner write their parts of a model."""
TRAINED_FILE = "trained.json"
"""In a trained model's folder: the number of steps that it has learned for."""
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
"""Files of which a tokenizer has one at least."""
MOST_READ = 2 << 30
"""Bytes. Larger weights are not read for numbers that are not finite: that would take longer than a look may."""
EXPONENTS = {
    "F64": ("<u8", 0x7FF << 52),
    "F32": ("<u4", 0xFF << 23),
    "F16": ("<u2", 0x1F << 10),
    "BF16": ("<u2", 0xFF << 7),
}
"""By type of number: how its bits are read, and its exponent's, which are all set in inf and NaN."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor in a file: its name, type of number, and first and last byte (exclusive) in the file."""

    name: str
    dtype: str
    start: int
    end: int


def check_folder(path: Path, own_tokenizer: bool) -> None:
    """The folder of a model has a tokenizer, unless it brings code for `own_tokenizer`, and whole, finite weights.

    Raises UserError, which names the file.
    """
    if not own_tokenizer and not any((path / name).exists() for name in TOKENIZERS):
        raise UserError(f"the folder has no tokenizer ({TOKENIZERS[0]} or {TOKENIZERS[1]}): save it there too")
    if not any(file.suffix in WEIGHTS for file in path.iterdir()):
        raise UserError("the folder has no weights (*.safetensors)")
    index = path / INDEX
    if index.exists():
        missing = sorted(set(json.loads(index.read_text())["weight_map"].values()) - {x.name for x in path.iterdir()})
        if missing:
            raise UserError(f"the folder has no {missing[0]}, which {INDEX} names")
    files = sorted(path.glob("*.safetensors"))
    tensors = {file: list(_tensors(file)) for file in files}
    if sum(file.stat().st_size for file in files) <= MOST_READ:
        for file, stored in tensors.items():
            _check_finite(file, stored)


def _tensors(file: Path) -> Iterator[Stored]:
    """What the header promises. Raises UserError if the file is no such file or is cut off."""
    size = file.stat().st_size
    try:
        with file.open("rb") as data:
            begin = 8 + int.from_bytes(data.read(8), "little")
            header: dict[str, Any] = json.loads(data.read(begin - 8)) if begin <= size else {}
        stored = [
            Stored(name, entry["dtype"], *(begin + offset for offset in entry["data_offsets"]))
            for name, entry in header.items()
            if name != "__metadata__"
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{file.name} is no safetensors file") from None
    promised = max((tensor.end for tensor in stored), default=begin)
    if promised > size:
        raise UserError(f"{file.name} is cut off: it has {size} of {promised} bytes")
    yield from stored


def _check_finite(file: Path, stored: list[Stored]) -> None:
    import numpy as np

    data = np.memmap(file, dtype=np.uint8, mode="r")
    for tensor in stored:
        if tensor.dtype in EXPONENTS:
            layout, exponent = EXPONENTS[tensor.dtype]
            bits = data[tensor.start : tensor.end].view(layout)
            bad = int(np.count_nonzero((bits & exponent) == exponent))
            if bad:
                raise UserError(f"{tensor.name} in {file.name} has NaN or infinity in {bad} of {bits.size} numbers")
