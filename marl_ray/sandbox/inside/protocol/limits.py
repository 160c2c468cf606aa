"""Bounds on one program: set by the owner, kept by the judge."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one program. Seconds, MiB and bytes.

    CPU time is what decides (it keeps verdicts stable on busy machines); the wall limits catch sleeping and
    deadlocked programs, so `test_wall_s` should be a few times `test_cpu_s`. `program_wall_s` bounds all
    tests of a program together: what has not run by then is `skipped`, as it is after `max_timeouts` tests
    ran into their limit or `max_crashes` tests killed their process.

    Raises ValueError for what is not a positive number.
    """

    test_cpu_s: float = 10.0
    test_wall_s: float = 30.0
    program_wall_s: float = 60.0
    max_timeouts: int = 3
    max_crashes: int = 2
    memory_mb: int = 512
    max_output_bytes: int = 65536
    max_reply_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            kinds = (int, float) if item.name.endswith("_s") else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < 1 << 30:
                raise ValueError(f"limits.{item.name} must be a positive number, not {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `from_dict` reads it."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Limits:
        """Limits from JSON; keys that are left out keep their default. Raises ValueError that names an unknown key."""
        reject_unknown_keys("limits", data, {item.name for item in fields(cls)})
        return cls(**data)


def reject_unknown_keys(what: str, data: Mapping[str, Any], known: Set[str]) -> None:
    """Raises ValueError that names the first key which is not a known one."""
    unknown = sorted(str(key) for key in data if key not in known)
    if unknown:
        raise ValueError(f"{what}: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")
