"""Config files of other programs, which plug-ins read: their settings in the places that these have here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from marl_ray.core.errors import UserError
from marl_ray.registry import Registry

DIALECTS = Registry("dialect", {}, needs="convert")
"""Programs whose files can be read, by name."""


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

    def advice(self, name: str) -> str | None:
        """Return what replaces a setting of the program that does not exist here, None for another name."""


def dialects() -> list[Dialect]:
    """Return the dialects that plug-ins add."""
    return [DIALECTS.get(name) for name in DIALECTS.entries]


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
