"""Completions that were cut off at max_new_tokens: masked in the loss or penalised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.core.episode import Completion, Node, sibling_calls
from marl_ray.credit.returns import overlong_fraction
from tests.credit.trees import completion, episode, node, tree_config
from tests.credit.whole_batches import build_agent_batch

LIMIT = 10
answers = st.lists(st.tuples(st.integers(1, LIMIT), st.booleans(), st.floats(-2, 4)), min_size=2, max_size=5)
"""Each sibling's token count, whether it ended by itself, and its reward. A completion that did not end fills LIMIT
tokens."""


def answer(length: int, ended: bool) -> Completion:
    return completion(*range(length)) if ended else replace(completion(*range(LIMIT)), finish_reason="length")


def group_node(given: list[tuple[int, bool, float]]) -> Node:
    root = node(0, len(given), 1, "aligned", [[reward] for _, _, reward in given])
    root.calls = [list(sibling_calls((1,), [answer(length, ended) for length, ended, _ in given]))]
    return root


@settings(max_examples=100, deadline=None)
@given(
    groups=st.lists(answers, min_size=1, max_size=3),
    overlong=st.sampled_from(["none", "mask", "penalty"]),
    buffer=st.integers(0, LIMIT),
    aggregation=st.sampled_from(["sequence_sum", "token_mean", "constant"]),
)
def test_weights_follow_the_definition(
    groups: list[list[tuple[int, bool, float]]], overlong: str, buffer: int, aggregation: str
) -> None:
    section = {"overlong": overlong, "overlong_penalty": 0.5, "max_new_tokens": LIMIT, "loss_aggregation": aggregation}
    if overlong == "penalty":
        section["overlong_buffer"] = buffer
    run = tree_config(1, 1, 5, **section)
    (mini_batch,) = build_agent_batch([episode(group_node(group)) for group in groups], 0, 0, run).mini_batches
    counted = sum(
        length if ended else LIMIT for group in groups for length, ended, _ in group if ended or overlong != "mask"
    )
    for group, made in zip(groups, mini_batch.groups, strict=True):
        returns = np.array([reward for _, _, reward in group])
        lengths = np.array([length if ended else LIMIT for length, ended, _ in group])
        cut = np.array([not ended for _, ended, _ in group])
        if overlong == "penalty":
            returns = returns - 0.5 * np.where(
                cut, 1.0, np.clip((lengths - LIMIT + buffer) / buffer, 0, 1) if buffer else 0.0
            )
        scale = {
            "sequence_sum": 1 / (len(group) * len(groups)),
            "token_mean": 1 / max(counted, 1),
            "constant": 1 / (len(group) * len(groups) * LIMIT),
        }[aggregation]
        expected = scale * (returns - returns.mean()) * ((overlong != "mask") | ~cut)
        np.testing.assert_allclose(np.array(made.weights) / mini_batch.normalizer, expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(made.returns, returns)


@pytest.mark.parametrize(
    ("length", "ended", "buffer", "expected"),
    [
        (10, False, 0, 1.0),
        (10, True, 0, 0.0),
        (6, True, 4, 0.0),
        (7, True, 4, 0.25),
        (10, True, 4, 1.0),
        (5, True, 10, 0.5),
    ],
)
def test_hand_computed_overlong_fractions(length: int, ended: bool, buffer: int, expected: float) -> None:
    assert overlong_fraction(answer(length, ended), LIMIT, buffer) == expected


def test_a_masked_completion_stays_in_the_baseline() -> None:
    run = tree_config(1, 1, 2, overlong="mask", max_new_tokens=LIMIT)
    root = group_node([(3, True, 2.0), (0, False, 0.0)])
    (group,) = build_agent_batch([episode(root)], 0, 0, run).mini_batches[0].groups
    assert group.weights == (0.5, 0.0)
    assert group.returns == (2.0, 0.0)
