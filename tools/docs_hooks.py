"""Hooks of mkdocs: the search puts pages that teach before tables of results."""

from __future__ import annotations

from typing import Any

BOOSTS = {"tutorials": 1.5, "how-to": 1.5, "explanation": 1.5, "results": 0.3}
"""Factors of the search's score by folder; the theme reads them from the metadata of a page."""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> None:
    """Set the factor of a page."""
    folder = page.file.src_uri.split("/")[0]
    if folder in BOOSTS:
        page.meta.setdefault("search", {})["boost"] = BOOSTS[folder]
