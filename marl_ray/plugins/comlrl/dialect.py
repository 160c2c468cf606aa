"""Config files of CoMLRL as a dialect (`marl_ray.config.dialects`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marl_ray.config.schema import ALGORITHMS
from marl_ray.plugins.comlrl import conversion, defaults


class ComlrlFiles:
    """The config files of CoMLRL 1.4.3."""

    title = "a config of CoMLRL, read with its defaults and compat comlrl"
    sections = frozenset(conversion.SECTIONS | conversion.TRAINERS.keys()) - set(ALGORITHMS)

    def recognises(self, tree: Mapping[str, Any]) -> bool:
        """Return whether a file has a section or a setting that only files of CoMLRL have."""
        return conversion.is_comlrl(tree)

    def convert(self, tree: Mapping[str, Any], algorithm: str) -> tuple[dict[str, Any], list[str]]:
        """Return the settings of a file by the keys used here, and a note per difference. Raises UserError."""
        return conversion.convert_comlrl(tree, algorithm)

    def key_here(self, key: str, algorithm: str) -> str:
        """Return the key here of a dotted key of CoMLRL."""
        return conversion.key_here(key, algorithm)

    def defaults(
        self, given: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], algorithm: str
    ) -> dict[str, Any]:
        """Return the defaults of CoMLRL by key."""
        return defaults.defaults(given, entries, algorithm)

    def advice(self, name: str) -> str | None:
        """Return what replaces a setting of CoMLRL that does not exist here, None for another name."""
        replacement = conversion.advice(name)
        if replacement is None:
            return None
        return f"known from CoMLRL: {replacement}"


COMLRL = ComlrlFiles()
