"""Who an actor is, as data. Its English is made here and parsed nowhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["generator", "learner", "sandbox"]


@dataclass(frozen=True, slots=True, order=True)
class ActorId:
    """One actor of a run. `agent` counts policies from 0 and is None for sandbox workers, which serve all of them.

    `replica` counts an agent's generators, the ranks of its learner, or the sandbox workers, from 0.

    Example:
        >>> str(ActorId("generator", 1, 0)), str(ActorId("sandbox", None, 3))
        ('agent 1 generator 0', 'sandbox 3')
    """

    kind: Kind
    agent: int | None
    replica: int = 0

    def __str__(self) -> str:
        if self.agent is None:
            return f"{self.kind} {self.replica}"
        return f"agent {self.agent} {self.kind}" + (f" {self.replica}" if self.kind == "generator" else "")
