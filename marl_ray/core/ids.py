"""Identities of policies and actors as data. Their text is produced here and never parsed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["generator", "learner", "sandbox"]


@dataclass(frozen=True, slots=True, order=True)
class PolicyId:
    """A set of weights, identified by the agents that use it, in order.

    Example:
        >>> str(PolicyId((1,))), str(PolicyId((0, 2))), PolicyId((0, 2)).key, PolicyId((0, 2)).number
        ('agent 1', 'policy 0', 'policy_0', 0)
    """

    agents: tuple[int, ...]

    @property
    def number(self) -> int:
        """The policy's first agent."""
        return self.agents[0]

    @property
    def key(self) -> str:
        """The prefix of metric names and the name of folders."""
        return str(self).replace(" ", "_")

    @property
    def introduction(self) -> str:
        """The name with the agents that share the policy: `policy 0 (agents 0, 2)`."""
        shared = len(self.agents) > 1
        return f"{self} (agents {', '.join(map(str, self.agents))})" if shared else str(self)

    def __str__(self) -> str:
        return f"{'agent' if len(self.agents) == 1 else 'policy'} {self.number}"


@dataclass(frozen=True, slots=True, order=True)
class ActorId:
    """One actor of a run, over all its incarnations.

    `policy` is the policy that the actor samples from or trains; None for sandbox workers and for a learner process
    that several policies share. `replica` counts a policy's generators, the ranks of its learner, or the sandbox
    workers, from 0; for a shared learner process it is the number of the first policy.

    Example:
        >>> str(ActorId("generator", PolicyId((1,)), 0)), str(ActorId("sandbox", None, 3))
        ('agent 1 generator 0', 'sandbox 3')
        >>> str(ActorId("learner", PolicyId((1,)))), str(ActorId("learner", PolicyId((1,)), 2))  # rank 0 has no number
        ('agent 1 learner', 'agent 1 learner rank 2')
    """

    kind: Kind
    policy: PolicyId | None
    replica: int = 0

    def __str__(self) -> str:
        if self.policy is None:
            return f"{self.kind} {self.replica}"
        if self.kind == "generator":
            return f"{self.policy} generator {self.replica}"
        return f"{self.policy} learner" + (f" rank {self.replica}" if self.replica else "")
