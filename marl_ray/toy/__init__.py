"""Bundled toy task sets with tiny base policies: the quickstart's set, which `make quickstart` trains on a CPU, and a
harder one. `tools/toy` creates them."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

TASKS_PATH, BASE_PATH = _HERE / "tasks.jsonl", _HERE / "base"
HARD_TASKS_PATH, HARD_BASE_PATH = _HERE / "hard_tasks.jsonl", _HERE / "hard_base"
REVISING_BASE_PATH = _HERE / "revising_base"
ROWS = {"bundled:toy": TASKS_PATH, "bundled:toy-hard": HARD_TASKS_PATH}
"""File by dataset name."""
MODELS = {
    "bundled:toy-base": BASE_PATH,
    "bundled:toy-hard-base": HARD_BASE_PATH,
    "bundled:toy-revising-base": REVISING_BASE_PATH,
}
"""Folder by model name."""
