"""A batch that is accumulated in portions gives bit-identical results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.core.batch import Batch, Group
from marl_ray.learning.learner import Learner
from marl_ray.learning.micro_batches import Layout
from tests.learning.builders import (
    VOCABULARY,
    assert_same_state,
    numbered,
    some_groups,
    stream,
    tiny_learner,
    with_prompt,
)

LAYOUTS: tuple[Layout, ...] = ("packed", "padded")
MICROBATCH_TOKENS = 16


@dataclass(frozen=True)
class Pair:
    """Two learners of one policy, and the checkpoint to which both return."""

    whole: Learner
    streamed: Learner
    start: str

    def rewind(self) -> tuple[Learner, Learner]:
        for learner in (self.whole, self.streamed):
            learner.load(self.start, 0)
        return self.whole, self.streamed


@pytest.fixture(scope="module")
def pairs(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Layout, Pair]:
    pairs = {}
    for layout in LAYOUTS:
        options = {"microbatch_tokens": MICROBATCH_TOKENS, "importance": "truncate", "importance_bound": 1.2}
        whole, streamed = (tiny_learner(tiny_policy, layout, **options) for _ in range(2))
        start = str(tmp_path_factory.mktemp(layout))
        whole.save(start)
        pairs[layout] = Pair(whole, streamed, start)
    return pairs


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=12, deadline=None)
@given(data=st.data(), count=st.integers(0, 30), size=st.integers(5, 40), seed=st.integers(0, 1000))
def test_portions_are_bit_identical(
    pairs: dict[Layout, Pair], layout: Layout, data: st.DataObject, count: int, size: int, seed: int
) -> None:
    whole, streamed = pairs[layout].rewind()
    for step in range(2):
        batch = numbered(step, some_groups(count, seed + step), size)
        if not batch.mini_batches:
            assert whole.update(batch) == streamed.finish(batch, 0)
            continue
        first = len(batch.mini_batches[0].groups)
        cuts = sorted(data.draw(st.lists(st.integers(0, first), max_size=6)))
        assert stream(streamed, batch, cuts) == whole.update(batch)
    assert_same_state(whole, streamed)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_full_micro_batches_are_computed_early(pairs: dict[Layout, Pair], layout: Layout) -> None:
    _, streamed = pairs[layout].rewind()
    groups = numbered(0, some_groups(40, 1), 40).mini_batches[0].groups
    before = [parameter.detach().clone() for parameter in streamed.policy.parameters()]
    streamed.accumulate(0, 0, groups[:1])
    streamed.accumulate(0, 1, groups[1:])
    assert all(parameter.grad is not None for parameter in streamed.policy.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, streamed.policy.parameters(), strict=True))


def test_group_zero_starts_the_mini_batch_anew(pairs: dict[Layout, Pair]) -> None:
    whole, streamed = pairs["packed"].rewind()
    batch = numbered(0, some_groups(20, 2), 20)
    streamed.accumulate(0, 0, some_weighted_groups(20, 3))
    assert stream(streamed, batch, [7, 11]) == whole.update(batch)
    batch = numbered(1, some_groups(20, 4), 20)
    streamed.accumulate(1, 0, some_weighted_groups(20, 5))
    assert streamed.update(batch) == whole.update(batch), "a complete batch also starts anew"
    assert_same_state(whole, streamed)


def some_weighted_groups(count: int, seed: int) -> tuple[Group, ...]:
    return numbered(0, some_groups(count, seed), count).mini_batches[0].groups


def test_groups_out_of_order_are_rejected(pairs: dict[Layout, Pair]) -> None:
    whole, streamed = pairs["packed"].rewind()
    batch = numbered(0, some_groups(20, 6), 20)
    groups = batch.mini_batches[0].groups
    with pytest.raises(ValueError, match=r"^group 3 of batch 0 came where group 0 is next$"):
        streamed.accumulate(0, 3, groups[3:])
    streamed.accumulate(0, 0, groups[:5])
    for start in (4, 6):
        with pytest.raises(ValueError, match=rf"^group {start} of batch 0 came where group 5 is next$"):
            streamed.accumulate(0, start, groups[start:])
        with pytest.raises(ValueError, match=rf"^group {start} of batch 0 came where group 5 is next$"):
            streamed.finish(batch, start)
    for step in (1, -1):
        with pytest.raises(ValueError, match=rf"^batch {step} came where batch 0 is next$"):
            streamed.accumulate(step, 5, groups[5:])
        with pytest.raises(ValueError, match=rf"^batch {step} came where batch 0 is next$"):
            streamed.finish(replace(batch, step=step), 5)
    rest = replace(batch.mini_batches[0], groups=groups[5:])
    assert streamed.finish(Batch(0, (rest,)), 5) == whole.update(batch), "rejected groups changed no state"
    with pytest.raises(ValueError, match=r"^batch 0 came where batch 1 is next$"):
        streamed.update(batch)
    with pytest.raises(ValueError, match=r"^group 20 of batch 1 came where group 0 is next$"):
        streamed.finish(replace(batch, step=1), 20)
    assert_same_state(whole, streamed)


def test_a_failed_mini_batch_starts_anew(pairs: dict[Layout, Pair]) -> None:
    whole, streamed = pairs["packed"].rewind()
    batch = numbered(0, some_groups(20, 7), 20)
    groups = batch.mini_batches[0].groups
    streamed.accumulate(0, 0, groups[:5])
    unknown = with_prompt(groups[5], (VOCABULARY,))
    with pytest.raises(IndexError):
        streamed.accumulate(0, 5, (*groups[5:15], unknown, *groups[15:]))
    with pytest.raises(ValueError, match=r"^group 5 of batch 0 came where group 0 is next$"):
        streamed.accumulate(0, 5, groups[5:])
    assert stream(streamed, batch, [10]) == whole.update(batch)
    assert_same_state(whole, streamed)


def test_loading_a_checkpoint_drops_accumulated_gradients(pairs: dict[Layout, Pair], tmp_path: Path) -> None:
    whole, streamed = pairs["packed"].rewind()
    batches = [numbered(step, some_groups(20, 8 + step), 20) for step in range(2)]
    for learner in (whole, streamed):
        learner.update(batches[0])
    streamed.accumulate(1, 0, batches[1].mini_batches[0].groups)
    streamed.save(str(tmp_path))
    streamed.load(str(tmp_path), 1)
    with pytest.raises(ValueError, match=r"^group 20 of batch 1 came where group 0 is next$"):
        streamed.accumulate(1, 20, ())
    assert streamed.update(batches[1]) == whole.update(batches[1])
    assert_same_state(whole, streamed)
