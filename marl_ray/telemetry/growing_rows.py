"""Rows of a JSON Lines file of a run that is in progress, with their places in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from marl_ray.core.files import DISK_ERRORS
from marl_ray.telemetry.sinks import parse_row


@dataclass(frozen=True, slots=True)
class PlacedRow:
    """A line of a file: its place in bytes, and its object; None for a damaged line."""

    offset: int
    length: int
    row: dict[str, Any] | None


class GrowingRows:
    """The rows of a file that may be missing, grow, and be rewritten by a resumed run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end = 0
        """End of the last complete line that was read."""
        self._last = b""
        """The last complete line that was read."""

    def read_new(self, restart: Callable[[], None]) -> Iterator[PlacedRow]:
        """Yield the rows of lines that are complete and new since the last call.

        If the file was rewritten, call `restart` and yield all rows. A row at which the caller raises an error is
        yielded again by the next call.
        """
        try:
            with self.path.open("rb") as file:
                yield from self._read(file, restart)
        except FileNotFoundError:
            return  # before the first step
        except OSError as error:
            # A network file system may be away for a moment.
            if error.errno in DISK_ERRORS:
                raise

    def _read(self, file: BinaryIO, restart: Callable[[], None]) -> Iterator[PlacedRow]:
        # A resumed run drops rows and may have written more than it dropped, so sizes tell nothing. It keeps the rows
        # before the dropped ones as they are: the last line has moved unless all lines are where they were.
        file.seek(self._end - len(self._last))
        if file.read(len(self._last)) != self._last:
            self._end = 0
            self._last = b""
            file.seek(0)
            restart()
        for line in file:
            if not line.endswith(b"\n"):
                return  # the run is writing it
            yield PlacedRow(self._end, len(line), parse_row(line))
            self._end += len(line)
            self._last = line

    def row(self, offset: int, length: int) -> dict[str, Any] | None:
        """Return the row at a place; None if the file has changed."""
        return parse_row(self.line(offset, length))

    def line(self, offset: int, length: int) -> bytes:
        """Return the bytes at a place; nothing if the file cannot be read."""
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                return file.read(length)
        except OSError:
            return b""
