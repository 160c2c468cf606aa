"""A batch while its episodes are played: nodes in, as they come; every agent's groups out, in the batch's order.

The order is the batch's own (`marl_ray.credit.groups`), so what was played first changes nothing: a group is handed on
when all groups before it are known. Where a whole batch is compared, by an agent's estimator or what its critic says of
it, none is handed on before all are known: the learner begins when the rollout is over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from marl_ray.config import Config
from marl_ray.core.batch import Batch, Group
from marl_ray.core.concurrency import now
from marl_ray.core.episode import Episode, Node
from marl_ray.core.ids import PolicyId
from marl_ray.credit.groups import (
    build_batch,
    build_group,
    critic_needs_whole_batch,
    interleave,
    merge_batches,
    needs_whole_batch,
    ordered_by_turn,
    trainable_nodes,
    weight_batch,
)

Until = Callable[[Callable[[], bool]], Awaitable[None]]
"""Waits until something holds."""


class BatchBuilder:
    """Batch number `step` of `draws` episodes. `groups` [N] are the agents' that can be learned from by now.

    `draws` None: how many there are is not known before `close`, and they are added in their order. `changed` is called
    whenever there are more groups, and when the batch is complete.
    """

    def __init__(
        self, step: int, draws: int | None, config: Config, changed: Callable[[], None] = lambda: None
    ) -> None:
        self.step = step
        self.config = config
        self.first_mini_batch = config.optimizer.train_batch_size
        """An agent's groups in the first mini-batch; None: all."""
        self._changed = changed
        self.groups: list[list[Group]] = [[] for _ in range(config.num_agents)]
        self._credited: list[list[Group]] = [
            [] if needs_whole_batch(agent) else groups for agent, groups in zip(config.agents, self.groups, strict=True)
        ]
        """The same, or where a whole batch is compared, those that have no weights yet."""
        self.batches: list[Batch] = []
        """One an agent, once all episodes are known."""
        self._turns = range(1 if config.rollout.handoff == "all" else config.rollout.num_turns)
        self._open = draws is None
        """Whether further episodes may be added than those that are known of."""
        self._cells = [(draw, turn) for draw in range(draws or 0) for turn in self._turns]
        if ordered_by_turn(config):
            self._cells.sort(key=lambda cell: cell[1])
        self._nodes: dict[tuple[int, int], list[Node]] = {}
        self._handed_on = 0

    def add_node(self, draw: int, node: Node) -> None:
        """A node has its rewards. In a chain nothing later changes what its completions are credited with."""
        if self.config.rollout.handoff != "all":
            self._nodes[draw, node.turn] = [node]
            self._hand_on()

    def add_episode(self, draw: int, episode: Episode) -> None:
        """An episode is over: of turns that it did not play there is nothing to wait for."""
        if self._open:
            self._cells += [(draw, turn) for turn in self._turns]
        if self.config.rollout.handoff == "all":
            self._nodes[draw, 0] = trainable_nodes(episode, self.config)
        else:
            ordered_by_turn: defaultdict[int, list[Node]] = defaultdict(list)
            for _, node in episode.nodes():
                ordered_by_turn[node.turn].append(node)
            self._nodes |= {(draw, turn): ordered_by_turn[turn] for turn in self._turns}
        self._hand_on()

    def close(self) -> None:
        """There are no further episodes."""
        self._open = False
        self._hand_on()

    def _hand_on(self) -> None:
        while self._handed_on < len(self._cells) and (cell := self._cells[self._handed_on]) in self._nodes:
            for node in self._nodes[cell]:
                for agent, groups in enumerate(self._credited):
                    groups.append(build_group(node, agent, self.config))
            self._handed_on += 1
        if self._handed_on == len(self._cells) and not self._open and not self.batches:
            for settings, groups, credited in zip(self.config.agents, self.groups, self._credited, strict=True):
                if needs_whole_batch(settings):
                    groups += weight_batch(credited, settings, self.config.credit)
            self.batches = [build_batch(groups, self.step, self.config) for groups in self.groups]
        self._changed()


@dataclass
class PolicyStream:
    """What an assembly holds for one policy, as its learner takes it (`BatchStream`): the groups of all its agents.

    `until` waits for a condition; `may_learn` says whether an agent's next batch is in the log and may be learned from.
    """

    assembly: BatchBuilder
    policy: PolicyId
    until: Until
    may_learn: Callable[[int], bool]
    waited_s: float = field(default=0.0)
    """How long its learner has waited for it."""

    @property
    def step(self) -> int:
        """The batch's number."""
        return self.assembly.step

    async def groups(self, start: int) -> Sequence[Group]:
        """See `BatchStream`."""
        if critic_needs_whole_batch(self.assembly.config.credit):
            return []
        agents, size = self.policy.agents, self.assembly.first_mini_batch
        groups = [self.assembly.groups[agent] for agent in agents]
        end = None if size is None else size * len(agents)
        if end is not None and start >= end:
            return []

        def ready() -> int:
            """Nodes at which all agents' groups are known."""
            return min(map(len, groups))

        await self._wait(lambda: ready() * len(agents) > start or bool(self.assembly.batches))
        return interleave([of_agent[: ready()] for of_agent in groups])[start:end]

    async def batch(self) -> Batch:
        """See `BatchStream`."""
        await self._wait(lambda: bool(self.assembly.batches) and self.may_learn(self.policy.number))
        return merge_batches([self.assembly.batches[agent] for agent in self.policy.agents])

    async def _wait(self, holds: Callable[[], bool]) -> None:
        begun = now()
        await self.until(holds)
        self.waited_s += now() - begun


def builder_from_log(step: int, batches: Sequence[Batch], config: Config) -> BatchBuilder:
    """One that is complete, of batches from the log."""
    assembly = BatchBuilder(step, 0, config)
    assembly.batches = list(batches)
    assembly.first_mini_batch = None
    for groups, batch in zip(assembly.groups, batches, strict=True):
        if batch.mini_batches:  # cut as it was then, whatever the config says now
            groups += batch.mini_batches[0].groups
    return assembly
