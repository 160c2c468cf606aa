"""The default of model.max_length."""

from __future__ import annotations

import json
from collections.abc import Iterable

from marl_ray.core.files import expand_home
from marl_ray.registry import bundled_models
from marl_ray.toy import MODELS

MAX_LENGTH = 2048


def default_max_length(models: Iterable[object]) -> int:
    """Return MAX_LENGTH, or the positions of a model that has fewer. Only models on this machine are read."""
    return min([MAX_LENGTH, *map(_positions, models)])


def _positions(name: object) -> int:
    """Return the positions of a model, MAX_LENGTH if they are not known."""
    if not isinstance(name, str) or not name:
        return MAX_LENGTH
    bundled = MODELS | bundled_models()
    folder = bundled.get(name) or expand_home(name)
    try:
        settings = json.loads(folder.joinpath("config.json").read_text(encoding="utf-8"))
        positions = settings.get("text_config", settings).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):  # not here, or damaged, which the checks of the run report
        return MAX_LENGTH
    if isinstance(positions, int) and positions > 0:
        return positions
    return MAX_LENGTH
