"""Who waited for whom in a run, and what would help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from marl_ray.config import Config

WORTH_A_WORD = 0.1
"""Shares of the time below this are nobody's trouble."""


def waiting(config: Config, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line on where the steps' time went, and what would make a run shorter; nothing without steps."""
    steps = [row for row in rows if row.get("time/step") and "time/idle" in row]
    seconds = sum(row["time/step"] for row in steps)
    if not seconds:
        return []
    idle = sum(row["time/idle"] for row in steps) / seconds
    policies = config.policies
    waits = [sum(row.get(f"time/{policy.key}/wait", 0.0) for row in steps) / seconds for policy in policies]
    each = ", ".join(f"{policy}'s {share:.0%}" for policy, share in zip(policies, waits, strict=True))
    lines = [f"Waiting: engines {idle:.0%} of the time, for learners; learners for rollouts: {each}."]
    if idle > WORTH_A_WORD:
        held: Counter[int] = Counter()
        for row in steps:
            if "time/held_up_by" in row:
                held[int(row["time/held_up_by"])] += row["time/idle"]
        agent, lost = held.most_common(1)[0]
        k = config.rollout.max_staleness
        last = str(config.policy_of(agent)).capitalize()
        lines.append(
            f"{last} was the last to publish in {lost / (idle * seconds):.0%} of that: give its learner more "
            f"(agents.{agent}.resources.learner), or let rollouts go on meanwhile ({config.algorithm}.max_staleness "
            f"{k + 1})."
        )
    if min(waits) > max(WORTH_A_WORD, idle):
        lines.append("Rollouts take longest: where the cluster has room, more resources.generator.replicas would help.")
    return lines
