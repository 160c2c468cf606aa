"""Joint actions without a reward, which are left out of their groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from marl_ray.core.episode import AgentCall, Completion, Episode, JointAction, Node, Outcome, Task, sibling_calls
from marl_ray.core.errors import UserError
from marl_ray.core.state import TrainerState
from marl_ray.credit.groups import build_group
from marl_ray.rollout.unscored import NoVerdict, check_failed_rewards, keep_joint_actions
from marl_ray.telemetry.metrics import evaluation_row, rollout_metrics
from tests.rollout.counting import Counting, Dice, Sum, run_batch, tree_config


class Picky(Counting):
    """No reward for a sum that `limit` divides."""

    def __init__(self, agents: int, limit: int) -> None:
        super().__init__(agents)
        self.limit, self.without = limit, 0

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Sum:
        return super().attempt(task, [text or "0" for text in responses], last)  # an empty answer is a baseline's

    def outcome(self, attempt: Sum, report: Any | None) -> Outcome:
        if sum(attempt.numbers) % self.limit == 0:
            self.without += 1
            return Outcome(0.0, failure="divisible", unscored="none")
        return super().outcome(attempt, report)


@pytest.mark.parametrize("mode", ["aligned", "cross"])
@pytest.mark.parametrize("handoff", ["best", "random", "all"])
@pytest.mark.parametrize("estimator", ["magrpo", "marloo", "reinforce_pp", "opo", "maxrl"])
def test_siblings_are_compared_without_joint_actions_that_have_no_reward(
    mode: str, handoff: str, estimator: str
) -> None:
    """Compare the streamed batch with the batch of whole episodes, too, in `run_batch`."""
    run = tree_config(num_generations=4, joint_mode=mode, handoff=handoff, estimator=estimator)
    environment = Picky(2, limit=3)
    episodes = run_batch(run, environment, [Dice(1000), Dice(1000)])
    assert environment.without == sum(len(episode.unscored) for episode in episodes) > 0
    assert rollout_metrics(episodes, 1.0)["rollout/unscored"] == environment.without
    for episode in episodes:
        for _, node in episode.nodes():
            for action in node.joint_actions:
                texts = node.texts(action)
                assert action.reward == sum(map(int, texts))
                assert action.reward % 3 != 0
            for agent in range(2):
                used = {action.indices[agent] for action in node.joint_actions}
                assert used == set(range(len(node.calls[agent])))
                assert len(build_group(node, agent, run).returns) == len(used)


@pytest.mark.parametrize("estimator", ["difference", "shapley", "remax", "madpo"])
def test_a_node_whose_baseline_has_no_reward_is_lost(estimator: str) -> None:
    run = tree_config(num_turns=1, num_generations=4, estimator=estimator, joint_mode="aligned")
    episodes = run_batch(run, Picky(2, limit=2), [Dice(1000), Dice(1000)])
    for episode in episodes:
        assert episode.root is not None or episode.stopped_by("unscored")
        assert not episode.stopped_by("infra_error")


def test_a_node_without_any_reward_ends_its_branch() -> None:
    episodes = run_batch(tree_config(), Picky(2, limit=1))
    assert [episode.root for episode in episodes] == [None, None]
    assert [stop.reason for episode in episodes for stop in episode.stops] == ["unscored"] * 2
    state = TrainerState(0, 0, 0)
    config = tree_config()
    assert evaluation_row(config.training, config.external, state, episodes, {"eval": 1.0})["eval/unscored"] == 4


def node_in_rounds() -> Node:
    """Return a node of agents that answer in an order: agent 1 has a group of 2 and a continuation."""
    calls = []
    for agent, texts in enumerate((["a", "b"], ["x", "y"])):
        completions = [Completion((1,), text, (0.0,), "stop", ()) for text in texts]
        calls.append(list(sibling_calls((), completions, agent)))
    calls[1].append(AgentCall(1, "after b", (7,), Completion((1,), "z", (0.0,), "stop", ()), branch=1))
    outcome = Outcome(1.0)
    actions = [JointAction(indices, outcome, 1.0, (1.0, 1.0)) for indices in ((0, 0), (0, 1), (1, 2))]
    return Node(0, calls, actions)


def test_continuations_of_other_branches_keep_their_prompts() -> None:
    kept = keep_joint_actions(node_in_rounds(), [1, 2])
    assert [kept.texts(action) for action in kept.joint_actions] == [("a", "y"), ("b", "z")]
    assert [call.completion.text for call in kept.group(1)] == ["y"]
    assert kept.answers(kept.joint_actions[1])[1].prompt == "after b"
    kept = keep_joint_actions(node_in_rounds(), [0, 1])
    assert [kept.texts(action) for action in kept.joint_actions] == [("a", "x"), ("a", "y")]
    assert not any(call.branch for calls in kept.calls for call in calls)
    with pytest.raises(NoVerdict):  # no answer to the followed prompt is left
        keep_joint_actions(node_in_rounds(), [2])


@pytest.mark.parametrize(
    ("share", "scored", "none", "errors", "ends"),
    [
        (0.05, 100, 0, 5, False),
        (0.05, 94, 0, 6, True),
        (0.05, 3, 0, 1, False),  # one of several never ends a run
        (0.05, 2, 0, 2, True),
        (0.05, 0, 0, 1, True),
        (0.05, 0, 8, 0, False),  # None is no failure
        (0.05, 0, 7, 1, False),
        (1.0, 1, 0, 9, False),
    ],
)
def test_a_run_ends_if_too_many_rewards_fail(share: float, scored: int, none: int, errors: int, ends: bool) -> None:
    actions = [JointAction((), Outcome(1.0), 1.0, (1.0, 1.0))] * scored
    kinds = Counter(none=none, error=errors)
    unscored = [Outcome(0.0, failure=f"f raised {kind}", unscored=kind) for kind in kinds.elements()]
    episode = Episode(Task("t", "", {}), Node(0, [], actions), unscored=unscored)  # type: ignore[arg-type]
    if ends:
        with pytest.raises(
            UserError, match=rf"^{errors} of \d+ rewards of step 3 failed, more than .*: f raised error$"
        ):
            check_failed_rewards([episode], "step 3", share, "magrpo")
    else:
        check_failed_rewards([episode], "step 3", share, "magrpo")


def test_calls_of_lost_nodes_and_baselines_count() -> None:
    # A failed call of a baseline loses its node.
    failed = [Outcome(0.0, failure="f raised", unscored="error")]
    episodes = [Episode(Task("t", "", {}), None, unscored=failed, reward_calls=16) for _ in range(8)]
    episodes += [Episode(Task("t", "", {}), None, reward_calls=16) for _ in range(12)]
    check_failed_rewards(episodes, "step 3", 0.05, "magrpo")
    with pytest.raises(UserError, match=r"^8 of 320 rewards of step 3 failed"):
        check_failed_rewards(episodes, "step 3", 0.02, "magrpo")
