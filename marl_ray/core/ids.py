"""Identities of policies and actors as data. Their text is produced here and never parsed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["generator", "learner", "sandbox"]


@dataclass(frozen=True, slots=True, order=True)
class PolicyId:
    """A set of weights, identified by the agents that use it, in order: `agent 1`, or `policy 0` if it is shared."""

    agents: tuple[int, ...]

    @property
    def first_agent(self) -> int:
        """The policy's first agent, whose settings its actors have."""
        return self.agents[0]

    @property
    def key(self) -> str:
        """The prefix of metric names and the name of folders."""
        return str(self).replace(" ", "_")

    @property
    def introduction(self) -> str:
        """The name with the agents that share the policy: `policy 0 (agents 0, 2)`."""
        if len(self.agents) == 1:
            return str(self)
        agents = ", ".join(map(str, self.agents))
        return f"{self} (agents {agents})"

    def __str__(self) -> str:
        noun = "agent" if len(self.agents) == 1 else "policy"
        return f"{noun} {self.first_agent}"


@dataclass(frozen=True, slots=True, order=True)
class ActorId:
    """One actor of a run, over all its incarnations.

    `policy` is the policy that the actor samples from or trains; None for sandbox workers and for a learner process
    that several policies share. `replica` counts a policy's generators, the ranks of its learner, or the sandbox
    workers, from 0; for a shared learner process it is the number of the first policy. The text is `agent 1 generator
    0`, `agent 1 learner` (rank 0), `agent 1 learner rank 2` or `sandbox 3`.
    """

    kind: Kind
    policy: PolicyId | None
    replica: int = 0

    @property
    def first_agent(self) -> int:
        """The first agent of a generator or a learner, whose settings the actor has."""
        return self.replica if self.policy is None else self.policy.first_agent

    def __str__(self) -> str:
        if self.policy is None:
            return f"{self.kind} {self.replica}"
        if self.kind == "generator":
            return f"{self.policy} generator {self.replica}"
        if self.replica:
            return f"{self.policy} learner rank {self.replica}"
        return f"{self.policy} learner"
