"""Limits of tools/density.py: no room of the spine, and not the core, may hold more in a line than it does today."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools import density
from tools.density import PACKAGE, Density, core, measure, measure_all, spine

TEXT = '''"""A module
of two lines."""

LIMIT = 3
"""A docstring of an attribute."""


def first(values: list[int]) -> int:  # a comment beside code
    """Return the first value."""
    # A comment on a line of its own.
    low, high = 0, 1
    left, right = values
    doubled = [2 * value for value in values]
    total = sum(value for value in doubled)
    text = """two lines
    of a text"""
    return total if low else len(text)
'''


def test_a_small_text_has_known_counts(tmp_path: Path) -> None:
    path = tmp_path / "small.py"
    path.write_text(TEXT, encoding="utf-8")
    found = measure(path)
    assert (found.files, found.lines, found.comments) == (1, 9, 2)
    assert (found.comprehensions, found.conditionals, found.pairs) == (2, 1, 1)
    code = [line.strip() for line in TEXT.splitlines()]
    kept = [line for line in code if line and not line.startswith(("#", '"""', "of two lines"))]
    assert found.characters == sum(map(len, kept))


def test_counts_of_files_add_up(tmp_path: Path) -> None:
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text(TEXT, encoding="utf-8")
    assert measure_all([tmp_path]) == measure(tmp_path / "first.py") + measure(tmp_path / "second.py")
    assert measure_all([tmp_path]).per_hundred(9) == 50.0
    assert Density().line_length == 0.0


LIMITS = {
    "core": (2.1, 0.8, 0.2, 34.5),
    "rollout": (4.1, 1.2, 0.2, 43.3),
    "credit": (3.5, 0.9, 0.4, 45.4),
    "learning": (3.1, 0.9, 0.1, 40.4),
    "weights": (2.2, 0.4, 0.0, 40.7),
    "actors": (2.0, 1.2, 0.0, 40.2),
    "trainer": (2.7, 0.3, 0.0, 40.6),
    "the spine": (2.8, 1.0, 0.1, 40.4),
    "the core": (2.7, 1.1, 0.1, 41.1),
    "config": (2.0, 0.5, 0.0, 40.9),
    "http": (1.3, 1.3, 0.0, 39.6),
    "external": (0.9, 1.3, 0.0, 40.9),
    "sandbox": (2.9, 1.4, 0.1, 39.1),
    "sandbox/inside": (2.8, 1.4, 0.1, 39.2),
    "plugins/serve": (2.4, 1.1, 0.0, 41.6),
    "plugins/gateway": (1.4, 0.8, 0.1, 40.4),
    "plugins/environment_server": (0.9, 0.0, 0.0, 42.5),
    "plugins/preferences": (2.6, 0.4, 0.0, 41.9),
    "plugins/code_completion": (2.9, 1.0, 0.0, 36.8),
    "plugins/builder": (2.2, 0.6, 0.0, 37.3),
    "plugins/solver_tester": (2.7, 0.0, 0.0, 39.1),
    "plugins/function_calls": (2.6, 0.3, 0.0, 36.3),
    "plugins/grid": (2.7, 0.0, 0.0, 39.9),
    "plugins/math": (2.5, 0.6, 0.0, 41.9),
    "plugins/tags": (2.6, 0.0, 0.0, 42.4),
    "plugins/travel": (2.3, 0.2, 0.0, 34.6),
    "plugins/bug_fix": (1.7, 1.1, 0.0, 36.6),
    "plugins/contests": (1.7, 0.0, 0.0, 40.7),
    "plugins/games": (2.7, 0.0, 0.0, 34.0),
    "plugins/gpu_check": (1.3, 0.0, 0.0, 37.2),
    "plugins/centralized": (2.0, 0.0, 0.0, 43.6),
    "plugins/writing": (1.7, 0.0, 0.0, 39.7),
    "plugins/comlrl": (1.2, 0.0, 0.0, 42.0),
}
"""Per room, the spine and the core: comprehensions, conditional expressions and assignments of unrelated values per 100
lines of code, and characters per line of code. Lower a limit with the room that it measures."""


@pytest.mark.parametrize("name", LIMITS)
def test_no_room_thickens(name: str) -> None:
    whole: dict[str, Callable[[], Density]] = {"the spine": spine, "the core": core}
    found = whole[name]() if name in whole else measure_all([PACKAGE / name])
    comprehensions, conditionals, pairs, length = LIMITS[name]
    assert found.per_hundred(found.comprehensions) <= comprehensions
    assert found.per_hundred(found.conditionals) <= conditionals
    assert found.per_hundred(found.pairs) <= pairs
    assert found.line_length <= length


def test_every_room_of_the_spine_has_limits() -> None:
    assert set(LIMITS) >= {*density.SPINE, "the spine", "the core"}
