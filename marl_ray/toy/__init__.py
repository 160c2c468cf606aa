"""Bundled toy task sets with tiny base policies: the quickstart's set, which `make quickstart` trains on a CPU, and a
harder one. `tools/toy` creates them."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

TASKS_PATH, BASE_PATH = _HERE / "tasks.jsonl", _HERE / "base"
HARD_TASKS_PATH, HARD_BASE_PATH = _HERE / "hard_tasks.jsonl", _HERE / "hard_base"
REVISING_BASE_PATH = _HERE / "revising_base"
GRID_BASE_PATH = _HERE / "grid_base"
KUHN_BASE_PATH, TIC_TAC_TOE_BASE_PATH = _HERE / "kuhn_base", _HERE / "tic_tac_toe_base"
MODELS = {
    "bundled:toy-base": BASE_PATH,
    "bundled:toy-hard-base": HARD_BASE_PATH,
    "bundled:toy-revising-base": REVISING_BASE_PATH,
    "bundled:toy-grid-base": GRID_BASE_PATH,
    "bundled:toy-kuhn-base": KUHN_BASE_PATH,
    "bundled:toy-tic-tac-toe-base": TIC_TAC_TOE_BASE_PATH,
}
"""Folder by model name."""
