"""The generated reference pages."""

from __future__ import annotations

import pytest

from tools.make_reference import FOLDER, PAGES


@pytest.mark.plugins(
    "bug_fix",
    "builder",
    "centralized",
    "code_completion",
    "comlrl",
    "environment_server",
    "frozen_partners",
    "function_calls",
    "games",
    "gateway",
    "gpu_check",
    "grid",
    "planner",
    "preferences",
    "report",
    "serve",
    "solver_tester",
    "tags",
    "travel",
    "writing",
)
@pytest.mark.parametrize("name", PAGES)
def test_reference_pages_are_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run python -m tools.make_reference"
