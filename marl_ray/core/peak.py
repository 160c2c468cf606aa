"""The depth of a queue over time as one number."""

from __future__ import annotations


class Peak:
    """The largest value since it was last taken.

    Example:
        >>> peak = Peak()
        >>> for depth in (3, 7, 2):
        ...     peak.note(depth)
        >>> peak.take(), peak.take()
        (7, 2)
    """

    def __init__(self) -> None:
        self._largest = 0
        self._latest = 0

    def note(self, value: int) -> None:
        """Add a value."""
        self._latest = value
        self._largest = max(self._largest, value)

    def take(self) -> int:
        """Return the largest value since the last call, the value at that call included."""
        largest = self._largest
        self._largest = self._latest
        return largest
