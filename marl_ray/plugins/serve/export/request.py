"""The arguments of `marl-ray export`. Fields with a docstring are flags. Nothing heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What to export, and where to."""

    run: Path
    to: Annotated[Path, "DIR"]
    """new or empty folder"""
    name: str | None = None
    """name in the model card; default: the folder's name"""
    license: Annotated[str, "ID"] = "unknown"
    """licence in the card"""
    evaluation: Annotated[Path | None, "DIR"] = None
    """folder of a marl-ray eval of this run: its metrics, with intervals, are in the card"""
    merge: bool = False
    """merge LoRA adapters into their base models"""
