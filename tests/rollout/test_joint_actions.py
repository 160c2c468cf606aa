"""The small strategies."""

from __future__ import annotations

import random

from marl_ray.rollout.handoff import HANDOFFS
from marl_ray.rollout.joint_actions import JOINT_MODES


def test_aligned_pairs_completions_of_one_index() -> None:
    assert JOINT_MODES["aligned"]([3, 3]) == [(0, 0), (1, 1), (2, 2)]
    assert JOINT_MODES["aligned"]([2]) == [(0,), (1,)]


def test_cross_pairs_all_with_all() -> None:
    assert JOINT_MODES["cross"]([2, 2]) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(JOINT_MODES["cross"]([3, 3, 3])) == 27
    assert JOINT_MODES["cross"]([2]) == JOINT_MODES["aligned"]([2]), "one agent alone has nobody to be paired with"


def test_handoffs() -> None:
    rewards = [1.0, 4.0, 4.0, 0.0]
    assert HANDOFFS["best"](rewards, random.Random(0)) == [1]
    assert HANDOFFS["all"](rewards, random.Random(0)) == [0, 1, 2, 3]
    picks = [HANDOFFS["random"](rewards, random.Random(seed)) for seed in range(40)]
    assert {len(pick) for pick in picks} == {1}
    assert {index for pick in picks for index in pick} == {0, 1, 2, 3}
    assert picks == [HANDOFFS["random"](rewards, random.Random(seed)) for seed in range(40)]
