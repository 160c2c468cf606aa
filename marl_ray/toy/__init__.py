"""The bundled quickstart: a toy task set and a tiny base policy that `make quickstart` trains on a CPU."""

from __future__ import annotations

from pathlib import Path

TASKS_PATH = Path(__file__).parent / "tasks.jsonl"
BASE_PATH = Path(__file__).parent / "base"
