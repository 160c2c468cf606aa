"""Joint modes and handoffs."""

from __future__ import annotations

import random

import pytest

from marl_ray.rollout import HANDOFFS, JOINT_MODES
from marl_ray.rollout.turn import check_handoff


def test_aligned_pairs_completions_of_one_index() -> None:
    assert JOINT_MODES.get("aligned")([3, 3]) == [(0, 0), (1, 1), (2, 2)]
    assert JOINT_MODES.get("aligned")([2]) == [(0,), (1,)]


def test_cross_gives_all_combinations() -> None:
    assert JOINT_MODES.get("cross")([2, 2]) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(JOINT_MODES.get("cross")([3, 3, 3])) == 27
    assert JOINT_MODES.get("cross")([2]) == JOINT_MODES.get("aligned")([2]), "with one agent both modes are the same"


def test_handoffs_select_the_joint_actions_to_expand() -> None:
    rewards = [1.0, 4.0, 4.0, 0.0]
    assert HANDOFFS.get("best")(rewards, random.Random(0)) == [1]
    assert HANDOFFS.get("all")(rewards, random.Random(0)) == [0, 1, 2, 3]
    picks = [HANDOFFS.get("random")(rewards, random.Random(seed)) for seed in range(40)]
    assert {len(pick) for pick in picks} == {1}
    assert {index for pick in picks for index in pick} == {0, 1, 2, 3}
    assert picks == [HANDOFFS.get("random")(rewards, random.Random(seed)) for seed in range(40)]


@pytest.mark.parametrize("chosen", [[], [0, 1], [2], [-1]])
def test_a_handoff_of_ones_own_selects_exactly_one(chosen: list[int]) -> None:
    with pytest.raises(ValueError, match="handoff own:worst must return a list of one index below 2, not"):
        check_handoff("own:worst", chosen, 2)
    check_handoff("own:worst", [1], 2)
    check_handoff("all", [0, 1], 2)
