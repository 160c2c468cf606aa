"""Markdown tables of the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """Return rows of cells as a Markdown table. The first row has the titles."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
