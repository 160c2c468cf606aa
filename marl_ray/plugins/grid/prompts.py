"""The prompts of letter grids. The bundled policy was trained on this exact text."""

from __future__ import annotations

from collections.abc import Mapping

EMPTY = "-"
"""The content of a cell without a letter."""


def description(rows: int, width: int, letters: str) -> str:
    """Return the text of a task."""
    return f"A grid has {rows} rows of {width} letters. Letters: {', '.join(letters)}."


def role(rows: range) -> str:
    """Return the name of the agent that writes these rows, numbered from 1."""
    if len(rows) == 1:
        return f"row {rows[0]}"
    return f"rows {rows[0]} to {rows[-1]}"


def spaced(row: str) -> str:
    """Return a row as it is written: letters with spaces between them."""
    return " ".join(row)


def first_prompt(task: str, rows: range, known: Mapping[int, str]) -> str:
    """Return the prompt of the first turn. `known` are the rows of the target that the agent knows, by number."""
    facts = ""
    for number, row in known.items():
        facts += f"Row {number} should be: {spaced(row)}\n"
    return f"{task.strip()}\n{facts}Write {role(rows)}.\n"


def revision(rows: range) -> str:
    """Return the closing instruction of later turns."""
    return f"Write {role(rows)} again."
