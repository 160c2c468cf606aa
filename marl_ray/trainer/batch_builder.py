"""Building a batch from episodes that finish in any order.

Groups leave in the order of the batch (`marl_ray.credit.groups`), whatever the order in which episodes finish. A group
is put on its policy's queue once all groups before it are known; if an estimator or a critic compares the whole batch,
once all groups are known, so that the learner starts after the rollout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from operator import itemgetter

from marl_ray.config import Config, CreditConfig
from marl_ray.core.batch import Batch, Group, GroupQueue
from marl_ray.core.episode import Episode, Node
from marl_ray.core.ids import PolicyId
from marl_ray.credit.groups import (
    build_batch,
    build_group,
    critic_needs_whole_batch,
    interleave,
    learns,
    merge_batches,
    needs_whole_batch,
    ordered_by_turn,
    trainable_nodes,
    weight_batch,
)


class BatchBuilder:
    """Batch number `step`, built from `episodes` episodes.

    With `episodes` None (dynamic sampling) the number is unknown until `close`, and episodes are added in their order.
    Groups of the first mini-batch are put on `queues`, one queue per policy. With `learn_in_turns` agents that do not
    learn in this step have empty batches.
    """

    def __init__(
        self, step: int, episodes: int | None, config: Config, queues: Mapping[PolicyId, GroupQueue] | None = None
    ) -> None:
        self.step = step
        self.config = config
        self.queues = queues or {}
        self.groups: list[list[Group]] = [[] for _ in range(config.num_agents)]
        """Groups that can be learned from, per agent."""
        self.batches: list[Batch] = []
        """One batch per agent, once all episodes are known."""
        self._unweighted: list[list[Group]] = []
        """`groups`, or for an estimator that compares the whole batch, groups that have no weights yet."""
        for settings, groups in zip(config.agents, self.groups, strict=True):
            # Without such an estimator both are the same list, so a group can be learned from as soon as it is built.
            self._unweighted.append([] if needs_whole_batch(settings) else groups)
        training = config.training
        self._learning: list[int] = []
        for agent in range(config.num_agents):
            if learns(agent, step, training.learn_in_turns, config.learning_policies):
                self._learning.append(agent)
        self._plays_trees = training.handoff == "all"
        # The groups of a tree have their returns only when the whole tree is known: one position per episode.
        self._turns = range(1 if self._plays_trees else training.num_turns)
        self._open = episodes is None
        """Whether episodes beyond the known ones may be added."""
        self._order = list(product(range(episodes or 0), self._turns))
        if ordered_by_turn(training, config.external):
            self._order.sort(key=itemgetter(1))
        self._nodes: dict[tuple[int, int], list[Node]] = {}
        self._done = 0
        """Number of positions in `_order` whose groups have been built."""

    def add_node(self, index: int, node: Node) -> None:
        """Add a node of episode `index` that has its rewards. Ignored with handoff `all`, which needs whole trees."""
        if not self._plays_trees:
            self._nodes[index, node.turn] = [node]
            self._build_groups()

    def add_episode(self, index: int, episode: Episode) -> None:
        """Add the finished episode `index`. Turns that it did not reach have no nodes."""
        if self._open:
            self._order += [(index, turn) for turn in self._turns]
        if self._plays_trees:
            self._nodes[index, 0] = trainable_nodes(episode, self.config.training, self.config.agents)
        else:
            for turn in self._turns:
                self._nodes[index, turn] = []
            for _, node in episode.nodes():
                self._nodes[index, node.turn].append(node)
        self._build_groups()

    def close(self) -> None:
        """Declare that no further episode will be added."""
        self._open = False
        self._build_groups()

    def _build_groups(self) -> None:
        while self._done < len(self._order):
            nodes = self._nodes.get(self._order[self._done])
            if nodes is None:
                break  # groups leave in order: later ones wait for this position
            for node in nodes:
                for agent in self._learning:
                    self._unweighted[agent].append(build_group(node, agent, self.config))
            self._done += 1
        is_complete = self._done == len(self._order) and not self._open
        if is_complete and not self.batches:
            self._build_batches()
        self._put_groups()

    def _build_batches(self) -> None:
        for settings, groups, unweighted in zip(self.config.agents, self.groups, self._unweighted, strict=True):
            if needs_whole_batch(settings):
                groups += weight_batch(unweighted, settings, self.config.training)
        self.batches = [build_batch(groups, self.step, self.config.training) for groups in self.groups]

    def _put_groups(self) -> None:
        """Put the groups of nodes that are complete for all agents of a policy, within the first mini-batch."""
        if critic_needs_whole_batch(self.config.training):
            return  # the learner reads all groups with the complete batch
        size = self.config.training.train_batch_size  # of a mini-batch; None: the whole batch
        for policy, queue in self.queues.items():
            groups_by_agent = [self.groups[agent] for agent in policy.agents]
            # The queue has the groups of all agents of the policy in turn.
            start = len(queue) // len(groups_by_agent)
            end = min(map(len, groups_by_agent))
            if size is not None:
                end = min(end, size)
            if start < end:
                new_groups = [groups[start:end] for groups in groups_by_agent]
                queue.put(interleave(new_groups))


def policy_batch(batches: Sequence[Batch], policy: PolicyId) -> Batch:
    """Return the batch of a policy from the batches of all agents."""
    return merge_batches([batches[agent] for agent in policy.agents])


def put_logged_groups(batches: Sequence[Batch], queues: Mapping[PolicyId, GroupQueue], credit: CreditConfig) -> None:
    """Put the first mini-batch of batches from the log on the queues. The mini-batches keep the size that they had."""
    if critic_needs_whole_batch(credit):
        return
    for policy, queue in queues.items():
        mini_batches = policy_batch(batches, policy).mini_batches
        if mini_batches:
            queue.put(mini_batches[0].groups)
