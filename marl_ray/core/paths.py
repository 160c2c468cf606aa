"""Paths as people write them."""

from __future__ import annotations

from pathlib import Path

from marl_ray.core.errors import UserError


def expand_home(path: str | Path) -> Path:
    """The path, with `~` and `~name` as the home they stand for. Raises UserError for the home of nobody."""
    path = Path(path)
    try:
        return path.expanduser()
    except RuntimeError:
        raise UserError(f"{path}: there is no user {path.parts[0]}: write the path without ~") from None
