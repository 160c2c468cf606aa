"""Small things said to people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 agent`, `2 agents`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
