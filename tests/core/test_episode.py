"""Episode trees, error texts and ids."""

from __future__ import annotations

from marl_ray.core.episode import Episode, Node, Stop, Task
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, PolicyId


def node(turn: int, **children: Node) -> Node:
    return Node(turn, [], [], {int(name[1:]): child for name, child in children.items()})


def test_nodes_come_parents_first_in_the_order_of_joint_actions() -> None:
    root = node(0, _2=node(1), _0=node(1, _1=node(2)))
    episode = Episode(Task("t", "", {}), root)
    assert [path for path, _ in episode.nodes()] == [(), (0,), (0, 1), (2,)]
    assert [found.turn for _, found in episode.nodes()] == [0, 1, 2, 1]


def test_a_failed_episode_has_no_nodes() -> None:
    episode = Episode(Task("t", "", {}), None, [Stop((), "prompt_too_long")])
    assert list(episode.nodes()) == []
    assert episode.stopped_by("prompt_too_long")
    assert not episode.stopped_by("infra_error")


def test_a_user_error_is_one_line() -> None:
    assert str(UserError("set it\n  to 2")) == "set it to 2"


def test_ids_as_text() -> None:
    ids = [ActorId("generator", PolicyId((1,)), 2), ActorId("learner", PolicyId((0,))), ActorId("sandbox", None, 3)]
    assert list(map(str, ids)) == ["agent 1 generator 2", "agent 0 learner", "sandbox 3"]
