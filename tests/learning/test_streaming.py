"""A batch that comes in portions is learned from as if it had come whole, in every bit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.core.batch import Batch, Group, UpdateStats
from marl_ray.core.episode import Completion
from marl_ray.learning.learner import Learner
from marl_ray.learning.micro_batches import Layout
from tests.learning.builders import VOCABULARY, build_batch, returned, tiny_learner

LAYOUTS: tuple[Layout, ...] = ("packed", "padded")
MICROBATCH_TOKENS = 16


@dataclass(frozen=True)
class Pair:
    """Two learners of one policy, and the folder that both go back to."""

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


def some_groups(count: int, seed: int) -> list[Group]:
    """Some of them fill micro-batches, some share one, and some have no gradient."""
    chance = random.Random(seed)

    def ids(longest: int) -> tuple[int, ...]:
        return tuple(chance.randrange(VOCABULARY) for _ in range(chance.randint(1, longest)))

    def completion() -> Completion:
        tokens = ids(7)
        logprobs = tuple(chance.uniform(-5, -2) for _ in tokens)
        return Completion(tokens, "", logprobs, "stop", ((0, len(tokens)),))

    def group() -> Group:
        size = chance.randint(2, 5)
        returns = tuple(float(chance.randint(0, 1)) for _ in range(size))
        return returned(0, ids(5), tuple(completion() for _ in range(size)), returns)

    return [group() for _ in range(count)]


def numbered(step: int, groups: Sequence[Group], size: int) -> Batch:
    return replace(build_batch(groups, size), step=step)


def stream(learner: Learner, batch: Batch, cuts: Sequence[int]) -> UpdateStats:
    """In portions that end at `cuts`; what is behind the last one comes with the end of the batch."""
    first, *later = batch.mini_batches
    done = 0
    for cut in cuts:
        learner.accumulate(batch.step, done, first.groups[done:cut])
        done = cut
    return learner.finish(replace(batch, mini_batches=(replace(first, groups=first.groups[done:]), *later)), done)


def assert_same_state(one: Learner, other: Learner) -> None:
    assert one.step == other.step
    for a, b in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(a, b)
    for key, moments in one.optimizer.state_dict()["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, other.optimizer.state_dict()["state"][key][name]), name


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), count=st.integers(0, 30), size=st.integers(5, 40), seed=st.integers(0, 1000))
def test_portions_change_no_bit(
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
def test_what_fills_micro_batches_is_not_kept_for_the_end(pairs: dict[Layout, Pair], layout: Layout) -> None:
    _, streamed = pairs[layout].rewind()
    groups = numbered(0, some_groups(40, 1), 40).mini_batches[0].groups
    before = [parameter.detach().clone() for parameter in streamed.policy.parameters()]
    streamed.accumulate(0, 0, groups[:1])
    streamed.accumulate(0, 1, groups[1:])
    assert all(parameter.grad is not None for parameter in streamed.policy.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, streamed.policy.parameters(), strict=True))


def test_the_first_group_begins_anew(pairs: dict[Layout, Pair]) -> None:
    whole, streamed = pairs["packed"].rewind()
    batch = numbered(0, some_groups(20, 2), 20)
    streamed.accumulate(0, 0, some_groups_weighed(20, 3))
    assert stream(streamed, batch, [7, 11]) == whole.update(batch)
    batch = numbered(1, some_groups(20, 4), 20)
    streamed.accumulate(1, 0, some_groups_weighed(20, 5))
    assert streamed.update(batch) == whole.update(batch), "so does a batch that comes whole"
    assert_same_state(whole, streamed)


def some_groups_weighed(count: int, seed: int) -> tuple[Group, ...]:
    return numbered(0, some_groups(count, seed), count).mini_batches[0].groups


def test_only_the_next_groups_of_the_next_batch_are_taken(pairs: dict[Layout, Pair]) -> None:
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
    assert streamed.finish(Batch(0, (rest,)), 5) == whole.update(batch), "what was refused has left no trace"
    with pytest.raises(ValueError, match=r"^batch 0 came where batch 1 is next$"):
        streamed.update(batch)
    with pytest.raises(ValueError, match=r"^group 20 of batch 1 came where group 0 is next$"):
        streamed.finish(replace(batch, step=1), 20)
    assert_same_state(whole, streamed)


def test_groups_that_failed_are_begun_anew(pairs: dict[Layout, Pair]) -> None:
    whole, streamed = pairs["packed"].rewind()
    batch = numbered(0, some_groups(20, 7), 20)
    groups = batch.mini_batches[0].groups
    streamed.accumulate(0, 0, groups[:5])
    unknown = replace(groups[5], prompt_ids=(VOCABULARY,))
    with pytest.raises(IndexError):
        streamed.accumulate(0, 5, (*groups[5:15], unknown, *groups[15:]))
    with pytest.raises(ValueError, match=r"^group 5 of batch 0 came where group 0 is next$"):
        streamed.accumulate(0, 5, groups[5:])
    assert stream(streamed, batch, [10]) == whole.update(batch)
    assert_same_state(whole, streamed)


def test_a_checkpoint_holds_nothing_half_accumulated(pairs: dict[Layout, Pair], tmp_path: Path) -> None:
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
