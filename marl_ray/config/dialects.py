"""Config files of other programs, which plug-ins read: their settings in the places that these have here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from marl_ray.core.errors import UserError
from marl_ray.registry import Registry

DIALECTS = Registry("compat", {"none": "marl_ray.config.dialects:OWN_FILES"}, member="defaults")
"""Programs whose files can be read and whose defaults can be had, by name."""


class Dialect(Protocol):
    """The config files of another program."""

    title: str
    """Kind of the file in a few words, for a note."""
    sections: Collection[str]
    """Names of sections that only its files have, which a message may suggest."""

    def recognises(self, tree: Mapping[str, Any]) -> bool:
        """Return whether a file is one of this program."""

    def convert(self, tree: Mapping[str, Any], algorithm: str) -> tuple[dict[str, Any], list[str]]:
        """Return the settings of a file by the keys used here, and a note per difference. Raises UserError."""

    def key_here(self, key: str, algorithm: str) -> str:
        """Return the key here of a dotted key of the program."""

    def defaults(
        self, given: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], algorithm: str
    ) -> dict[str, Any]:
        """Return the program's defaults by key, for settings that a file omits. `given` are the settings of the run by
        key, `entries` the settings of single agents."""

    def advice(self, name: str) -> str | None:
        """Return what replaces a setting of the program that does not exist here, None for another name."""


class OwnFiles:
    """The config files of this package, with its own defaults."""

    def defaults(
        self, given: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], algorithm: str
    ) -> dict[str, Any]:
        """Return nothing: the fields of the config have their defaults."""
        return {}


OWN_FILES = OwnFiles()


def dialects() -> list[Dialect]:
    """Return the dialects that plug-ins add."""
    return [DIALECTS.get(name) for name in DIALECTS.entries if name != "none"]


def dialect_of(tree: Mapping[str, Any]) -> Dialect | None:
    """Return the dialect of a file, None for a file of this package."""
    for dialect in dialects():
        if dialect.recognises(tree):
            return dialect
    return None


def adopt(
    tree: Mapping[str, Any], algorithm: str, overrides: Mapping[str, Any], note: Callable[[str], None]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the settings of a file, and overrides, by the keys used here. Raises UserError."""
    dialect = dialect_of(tree)
    if dialect is None:
        return tree, overrides
    converted, notes = dialect.convert(tree, algorithm)
    for line in (dialect.title, *notes):
        note(line)
    return converted, {dialect.key_here(key, algorithm): value for key, value in overrides.items()}


def convert_file(tree: Mapping[str, Any], algorithm: str) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of a file of another program by the keys used here, and a note per difference.

    A file that no dialect recognises is read by the first one. Raises UserError.
    """
    known = dialects()
    if not known:
        raise UserError("no plug-in reads config files of other programs")
    return (dialect_of(tree) or known[0]).convert(tree, algorithm)


def advice(name: str) -> str | None:
    """Return what replaces a setting of another program, None for an unknown name."""
    for dialect in dialects():
        if (replacement := dialect.advice(name)) is not None:
            return replacement
    return None


def foreign_sections() -> list[str]:
    """Return the names of sections that only files of other programs have."""
    names: list[str] = []
    for dialect in dialects():
        names += dialect.sections
    return sorted(names)
