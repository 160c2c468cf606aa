"""Checks of the functions that choose tasks and joint actions: samplers, joint modes and handoffs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from marl_ray.core.episode import Task
from marl_ray.testing.values import require

if TYPE_CHECKING:
    from marl_ray.data.sampling import Sampler
    from marl_ray.rollout.turn import Handoff, JointMode

EPOCHS = 3
"""Number of epochs in which a sampler is checked."""


def check_sampler(sampler: Sampler, tasks: Sequence[Task]) -> None:
    """Check a sampler, a function from tasks, epoch and random stream to the order of the tasks in the epoch."""
    for epoch in range(EPOCHS):
        order = list(sampler(tasks, epoch, random.Random(epoch)))
        complete = sorted(order) == list(range(len(tasks)))
        require(complete, f"epoch {epoch} must have each index below {len(tasks)} once, not {order[:20]}")
        again = list(sampler(tasks, epoch, random.Random(epoch)))
        require(order == again, "a sampler must depend on its arguments only, or a resumed run would repeat tasks")


def check_joint_mode(mode: JointMode) -> None:
    """Check a joint mode, a function from the size of each agent's group to joint actions."""
    for sizes in ([1], [4], [3, 3], [2, 2, 2]):
        joint = mode(list(sizes))
        require(joint == mode(list(sizes)), f"a joint mode must be a function of the sizes: {sizes} has two results")
        for indices in joint:
            fits = isinstance(indices, tuple) and len(indices) == len(sizes)
            require(fits, f"a joint action must be a tuple of {len(sizes)} indices, not {indices!r}")
            within = all(index in range(size) for index, size in zip(indices, sizes, strict=True))
            require(within, f"the joint action {indices} has an index outside the groups of sizes {sizes}")
        require(len(set(joint)) == len(joint), f"two joint actions are the same: {joint}")
        for agent, size in enumerate(sizes):
            missing = set(range(size)) - {indices[agent] for indices in joint}
            require(not missing, f"completion {missing} of agent {agent} is in no joint action and would earn nothing")


def check_handoff(handoff: Handoff) -> None:
    """Check a handoff, a function from rewards and a random stream to the one joint action that is continued."""
    for rewards in ([0.0], [1.0, 1.0], [3.0, -1.0, 2.0, 2.0]):
        given = list(rewards)
        chosen = handoff(given, random.Random(1))
        require(given == rewards, "a handoff must not modify the rewards")
        single = isinstance(chosen, list) and len(chosen) == 1 and chosen[0] in range(len(rewards))
        require(single, f"a handoff must return a list of one index below {len(rewards)}, not {chosen!r}")
        again = handoff(given, random.Random(1))
        require(chosen == again, "a handoff must depend on the rewards and the random stream only")
