"""Health checks that end a run or warn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from marl_ray.config import from_tree
from marl_ray.core.batch import UpdateStats
from marl_ray.core.episode import Completion, Episode, Node, Stop, Task, sibling_calls
from marl_ray.core.errors import UserError
from marl_ray.trainer.health import HealthMonitor

GOOD = UpdateStats(0.5, 1.0, 1e-5, 0.001, None, 1, 0)
BAD = replace(GOOD, optimizer_steps=0, skipped_steps=1, logprob_gap=None)
TASK = Task("t", "", {})


def health(**section: object) -> HealthMonitor:
    tree = {"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}, "magrpo": {"max_bad_steps": 2} | section}
    return HealthMonitor(from_tree(tree, "magrpo"))


def played(*versions: Sequence[int]) -> Episode:
    """Return an episode of one node with the weight versions of each agent's completions."""
    groups = [[Completion((1,), "", (0.0,), "stop", ((v, 1),)) for v in group] for group in versions]
    return Episode(TASK, Node(0, [list(sibling_calls((), group)) for group in groups], []))


def lost(detail: str) -> Episode:
    return Episode(TASK, None, [Stop((), "infra_error", detail)])


def test_steps_without_any_reward_end_the_run() -> None:
    watcher = health()
    nothing = Episode(TASK, None, [Stop((), "unscored", "no joint action has a reward")])
    scored = played([0], [0])
    for episodes in ([nothing], [nothing, nothing], [nothing, scored], [nothing], [nothing]):
        watcher.check_rollout(episodes, 0)
    with pytest.raises(
        UserError, match=r"^no episode of 3 steps in a row, up to step 1, had a reward: no joint action"
    ):
        watcher.check_rollout([nothing], 0)


def test_bad_steps_in_a_row_end_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = health()
    watcher.check_updates([GOOD, BAD], 1)
    watcher.check_updates([GOOD, GOOD], 2)
    watcher.check_updates([BAD, GOOD], 3)
    with pytest.raises(UserError, match=r"^2 steps in a row .* lower magrpo\.learning_rate and --resume$"):
        watcher.check_updates([BAD, BAD], 4)
    assert capsys.readouterr().err.count("not finite, update skipped") == 3


def test_a_gap_between_engine_and_learner_is_warned_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = health()
    for step in (1, 2):
        watcher.check_updates([GOOD, replace(GOOD, logprob_gap=0.2)], step)
    watcher.check_updates([replace(GOOD, logprob_gap=float("nan"))], 3)
    assert capsys.readouterr().err.count("differ by 0.200 nats per token") == 1


def test_a_gap_from_stale_weights_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    far = replace(GOOD, logprob_gap=0.2)
    health(max_staleness=2).check_updates([far], 1)
    assert capsys.readouterr().err == ""  # importance, on by itself, makes up for it
    health(max_staleness=2, importance="none").check_updates([far], 1)
    said = capsys.readouterr().err
    assert "weights up to 2 versions old" in said
    assert "magrpo.importance is none" in said
    health(importance="none").check_updates([far], 1)
    assert "versions old" not in capsys.readouterr().err


def test_a_step_without_any_verdict_ends_the_run() -> None:
    health().check_rollout([lost("gone"), played([3], [3])], 3)
    with pytest.raises(UserError, match="no episode of step 7 had a verdict: gone"):
        health().check_rollout([lost("gone"), lost("gone")], 6)


def test_stale_tokens_are_a_bug() -> None:
    health(max_staleness=1).check_rollout([played([3, 4], [4, 3])], 4)
    for batch, versions in ((5, [4, 5]), (2, [2, 3])):
        with pytest.raises(RuntimeError, match=rf"^agent 1 served versions .* in batch {batch}: allowed"):
            health().check_rollout([played([batch], versions)], batch)


def test_a_run_without_an_optimizer_step_fails() -> None:
    health().check_learning(1, 5)
    with pytest.raises(UserError, match="no optimizer step up to step 5 had a gradient"):
        health().check_learning(0, 5)
