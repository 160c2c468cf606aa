"""Metrics of revisions: how many passing answers later turns keep, and how many failing answers they mend.

A revision is a joint action of turn k (from 2) together with the joint action of turn k - 1 that it continues. The
metrics need an environment that reports `all_passed`. Branches that `external.stop` ended have no revision.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean

from marl_ray.core.episode import Episode, JointAction


def passed(action: JointAction) -> bool | None:
    """Return whether a joint action passes all tests, None if the environment does not report it."""
    value = action.outcome.metrics.get("all_passed")
    if value is None:
        return None
    return value == 1.0


def revisions(episodes: Sequence[Episode]) -> Iterator[tuple[int, bool, bool]]:
    """Yield the turn (from 1) of each revision, and whether the joint action passed before and after it."""
    for episode in episodes:
        for _, node in episode.nodes():
            for index, child in sorted(node.children.items()):
                before = passed(node.joint_actions[index])
                for action in child.joint_actions:
                    after = passed(action)
                    if before is not None and after is not None:
                        yield child.turn + 1, before, after


def revision_counts(episodes: Sequence[Episode]) -> dict[int, tuple[int, int, int, int]]:
    """Return by turn (from 2) the counts (kept, passing before, mended, failing before)."""
    by_turn: dict[int, tuple[int, int, int, int]] = {}
    for turn, before, after in sorted(revisions(episodes)):
        kept, passing, mended, failing = by_turn.get(turn, (0, 0, 0, 0))
        if before:
            by_turn[turn] = (kept + after, passing + 1, mended, failing)
        else:
            by_turn[turn] = (kept, passing, mended + after, failing + 1)
    return by_turn


def revision_metrics(episodes: Sequence[Episode], num_turns: int) -> dict[str, float]:
    """Return `turn_k/keep_rate`, `turn_k/fix_rate`, and two numbers of turn 2. Rates without an answer are left out.

    `first_pass@2` is the mean over tasks of the probability that one of two first answers passes, and `first_visible@2`
    that the one passes which the visible tests choose: the same number of answers as one revision, without feedback.
    Both need two joint actions of turn 1 per task.
    """
    row: dict[str, float] = {}
    for turn, (kept, passing, mended, failing) in revision_counts(episodes).items():
        if passing:
            row[f"turn_{turn}/keep_rate"] = kept / passing
        if failing:
            row[f"turn_{turn}/fix_rate"] = mended / failing
    pairs = pass_at_2(episodes)
    if num_turns > 1 and pairs is not None:
        row["turn_2/first_pass@2"] = pairs
        chosen = chosen_of_2(episodes)
        if chosen is not None:
            row["turn_2/first_visible@2"] = chosen
    return row


def pass_at_2(episodes: Sequence[Episode]) -> float | None:
    """Return the mean over tasks of 1 - C(n - c, 2) / C(n, 2), where c of n first joint actions pass. None if no task
    has two."""
    values = []
    for actions in _first_actions(episodes):
        n = len(actions)
        failing = n - sum(map(_passes, actions))
        # `statistics.pass_at_k` differs in the last bit, and rows of equal runs are compared bit for bit.
        values.append(1 - failing * (failing - 1) / (n * (n - 1)))
    return fmean(values) if values else None


def chosen_of_2(episodes: Sequence[Episode]) -> float | None:
    """Return the mean over tasks of the probability that a first answer passes or, if it fails the visible tests,
    another first answer. None if the environment does not report `visible_passed`, or no task has two."""
    values = []
    for actions in _first_actions(episodes):
        others = len(actions) - 1
        passing = sum(map(_passes, actions))
        chances = []
        for action in actions:
            visible = action.outcome.metrics.get("visible_passed")
            if visible is None:
                return None
            own = _passes(action)
            chances.append(own if visible else (passing - own) / others)
        values.append(fmean(chances))
    return fmean(values) if values else None


def _first_actions(episodes: Sequence[Episode]) -> list[list[JointAction]]:
    """Return the first joint actions with a verdict of each task that has two."""
    by_task: defaultdict[str, list[JointAction]] = defaultdict(list)
    for episode in episodes:
        if episode.root is not None:
            by_task[episode.task.id] += [action for action in episode.root.joint_actions if passed(action) is not None]
    return [actions for actions in by_task.values() if len(actions) > 1]


def _passes(action: JointAction) -> bool:
    return passed(action) is True
