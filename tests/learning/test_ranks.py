"""Learners of several ranks, as processes with gloo, equal a learner of one rank."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM

from marl_ray.config import LoraConfig, ModelConfig
from marl_ray.core.batch import Batch, UpdateStats
from marl_ray.core.errors import UserError
from marl_ray.learning.learner import NO_ADAPTER
from marl_ray.learning.micro_batches import (
    NO_TOKEN,
    Layout,
    MicroBatcher,
    distribute_rows,
    split_for_ranks,
    unweighted_row,
)
from marl_ray.learning.prompt_rows import PromptRow
from marl_ray.learning.ranks import SINGLE_RANK, RankGroup, interface_of, is_peer_failure
from marl_ray.learning.sharding import WeightGatherer
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.toy import BASE_PATH
from tests.learning.builders import numbered, some_groups, stream, tiny_learner, tiny_qwen2
from tests.learning.rank_processes import run_ranks

pytestmark = pytest.mark.slow

SAME, LEARNING_RATE = 1e-5, 1e-3
"""Small, because AdamW moves a weight by the learning rate however small its gradient is: at 1e-2, weights whose
gradient is rounding, such as key biases, differ by 4e-5."""


@dataclass(frozen=True)
class Lesson:
    """Arguments of a learner and the batches it trains on, of which `loaded` were in a checkpoint."""

    folder: str
    batches: tuple[Batch, ...]
    layout: Layout = "packed"
    kl: float = 0.0
    lora: LoraConfig = NO_ADAPTER
    settings: dict[str, Any] = field(default_factory=dict)
    cuts: tuple[int, ...] = ()
    load: str | None = None
    save: str | None = None
    export: str | None = None


@dataclass(frozen=True)
class Learned:
    """The result: statistics, and the weights as sent to generators."""

    stats: list[UpdateStats]
    gap: float
    weights: dict[str, torch.Tensor]


def learn(ranks: RankGroup, lesson: Lesson) -> Learned:
    options = {"microbatch_tokens": 24, "weight_decay": 0.1, "learning_rate": LEARNING_RATE} | lesson.settings
    learner = tiny_learner(Path(lesson.folder), lesson.layout, kl=lesson.kl, lora=lesson.lora, ranks=ranks, **options)
    if lesson.load:
        learner.load(lesson.load, lesson.batches[0].step)
    gap = learner.logprob_gap(some_groups(3, 77))
    stats = [stream(learner, batch, lesson.cuts) for batch in lesson.batches]
    if lesson.save:
        learner.save(lesson.save)
    if lesson.export:
        learner.export(lesson.export, ["def f(): pass"])
    gatherer = WeightGatherer(learner.policy, ranks)
    weights = gatherer.run_on_rank_zero(lambda: {name: tensor.clone() for name, tensor in gatherer})
    return Learned(stats, gap, weights or {})


def assert_same(found: Learned, expected: Learned, case: str = "") -> None:
    assert found.gap == pytest.approx(expected.gap, rel=SAME), case
    for one, other in zip(found.stats, expected.stats, strict=True):
        assert flat(one) == pytest.approx(flat(other), rel=1e-4, abs=1e-6), case
    assert found.weights.keys() == expected.weights.keys()
    for name, tensor in expected.weights.items():
        difference = (found.weights[name] - tensor).abs().max()
        # A key's bias has no effect on attention, so its gradient is rounding, which AdamW turns into steps.
        bound = 3 * SAME if name.endswith("k_proj.bias") else SAME
        assert difference <= bound * max(1.0, float(tensor.abs().max())), f"{case} {name}: {difference}"


def flat(stats: UpdateStats) -> dict[str, float]:
    """Return all numbers by name."""
    found: dict[str, float] = {}
    for name in UpdateStats.__slots__:
        value = getattr(stats, name)
        parts = {f"{name}.{inner}": getattr(value, inner) for inner in getattr(value, "__slots__", ())}
        found |= parts or ({} if value is None else {name: value})
    return found


def batches(count: int, size: int, seed: int = 0, first: int = 0, steps: int = 3) -> tuple[Batch, ...]:
    return tuple(numbered(step, some_groups(count, seed + step), size) for step in range(first, first + steps))


@pytest.fixture(scope="module")
def tiny_qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with biases and tied embeddings."""
    folder = tmp_path_factory.mktemp("tiny_qwen")
    model = tiny_qwen2(seed=1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    load_tokenizer(str(BASE_PATH), ModelConfig()).save_pretrained(folder)
    return folder


def learn_all(ranks: RankGroup, lessons: Sequence[Lesson]) -> list[Learned]:
    """Train one learner per lesson, one after another."""
    return [learn(ranks, lesson) for lesson in lessons]


@settings(max_examples=50, deadline=None)
@given(
    layout=st.sampled_from(["packed", "padded"]),
    size=st.integers(1, 5),
    max_tokens=st.integers(13, 60),
    seed=st.integers(0, 1000),
    per_row=st.booleans(),
)
def test_rows_are_distributed_over_ranks(layout: Layout, size: int, max_tokens: int, seed: int, per_row: bool) -> None:
    # Each completion is on one rank, and ranks have equally many micro-batches and similar numbers of tokens.
    rows = [unweighted_row(group) for group in some_groups(20, seed)]
    shares = [sum(row.size for row in share) for share in distribute_rows(rows, size)]
    assert max(shares) - min(shares) <= max(row.size for row in rows)
    of_ranks = []
    for rank in range(size):
        batcher = MicroBatcher(max_tokens, layout, RankGroup(rank, size))
        found = batcher.per_row(rows) if per_row else [*batcher.add(rows[:7]), *batcher.add(rows[7:]), *batcher.flush()]
        of_ranks.append(found)
        assert all(batch.input_ids.numel() <= max_tokens for batch in found)
        assert all(batch.completions or not (batch.tokens != NO_TOKEN).any() for batch in found)
    assert len({len(found) for found in of_ranks}) == 1
    there = [id(c) for found in of_ranks for batch in found for c in batch.completions]
    assert sorted(there) == sorted(id(c) for row in rows for c in row.completions)


def test_few_rows_are_split_so_that_every_rank_computes() -> None:
    rows = [unweighted_row(group) for group in some_groups(4, 0)]
    batchers = [MicroBatcher(10_000, "packed", RankGroup(rank, 8)) for rank in range(8)]
    found = [[*batcher.add(rows), *batcher.flush()] for batcher in batchers]
    assert sum(len(row.completions) for row in rows) >= 8
    assert all(batch.completions for of_rank in found for batch in of_rank), "no rank is idle"
    there = sorted(id(c) for of_rank in found for batch in of_rank for c in batch.completions)
    assert there == sorted(id(c) for row in rows for c in row.completions)


def test_a_row_of_one_completion_or_of_a_conversation_is_not_split() -> None:
    completions = unweighted_row(some_groups(1, 0)[0]).completions
    alone = PromptRow((1, 2), completions[:1])
    conversation = PromptRow((1, 2), completions, (1,) * len(completions))
    assert split_for_ranks([alone, conversation], 8) == [alone, conversation]
    assert split_for_ranks([], 8) == []


@pytest.mark.parametrize("size", [2, 4])
def test_several_ranks_equal_one_rank(tiny_policy: Path, tiny_qwen: Path, size: int) -> None:
    options: dict[str, Any] = {"cuts": (1, 3), "settings": {"loss": "clip", "importance": "truncate"}}
    lessons = [Lesson(str(folder), batches(7, 4), **options) for folder in (tiny_policy, tiny_qwen)]
    expected = learn_all(SINGLE_RANK, lessons)
    assert [sum(stats.optimizer_steps for stats in alone.stats) for alone in expected] == [6, 6]
    first, *others = run_ranks(size, learn_all, lessons)
    for found, alone in zip(first, expected, strict=True):
        assert_same(found, alone)
    for other in others:
        assert [repr(found.stats) for found in other] == [repr(found.stats) for found in first], (
            "all ranks report the same"
        )


WAYS: list[dict[str, Any]] = [
    {"layout": "padded"},
    {"settings": {"microbatch_tokens": 200}},
    {"kl": 0.3},
    {"kl": 0.3, "layout": "padded", "settings": {"reference_kl": "k3_in_loss", "loss": "gspo"}},
    {"settings": {"loss": "m2po", "m2_bound": 0.5}},
    {"settings": {"gradient_checkpointing": True, "max_grad_norm": 0.1}},
    {"lora": LoraConfig(rank=2), "kl": 0.3},
]


def test_several_ranks_equal_one_rank_with_other_losses_and_adapters(tiny_qwen: Path) -> None:
    lessons = [Lesson(str(tiny_qwen), batches(6, 3, seed=5, steps=2), **way) for way in WAYS]
    of_ranks = run_ranks(2, learn_all, lessons)[0]
    for way, found, alone in zip(WAYS, of_ranks, learn_all(SINGLE_RANK, lessons), strict=True):
        assert_same(found, alone, str(way))


def test_ranks_without_rows(tiny_policy: Path) -> None:
    # One group, no gradient, and mini-batches with both.
    groups = some_groups(8, 3)
    still = [replace(group, returns=(1.0,) * len(group.returns)) for group in groups]
    steps = ([groups[0]], [still[0]], [*still[:2], groups[1], still[2]])
    lesson = Lesson(str(tiny_policy), tuple(numbered(step, of_one, 2) for step, of_one in enumerate(steps)))
    alone = learn(SINGLE_RANK, lesson)
    assert [stats.optimizer_steps for stats in alone.stats] == [1, 0, 1]
    assert_same(run_ranks(4, learn, lesson)[0], alone)


def test_repeated_training_is_bit_identical(tiny_policy: Path) -> None:
    whole = Lesson(str(tiny_policy), batches(7, 4))
    once, again = run_ranks(2, learn_all, [whole, replace(whole, cuts=(1, 2))])[0]
    assert repr(once.stats) == repr(again.stats), "for any portions of groups"
    assert all(torch.equal(tensor, again.weights[name]) for name, tensor in once.weights.items())


@pytest.mark.parametrize("lora", [NO_ADAPTER, LoraConfig(rank=2)], ids=["all weights", "adapters"])
def test_checkpoints_load_with_any_number_of_ranks(tiny_qwen: Path, tmp_path: Path, lora: LoraConfig) -> None:
    # 1, 2, 4 and 1 ranks in turn, compared with one rank throughout.
    lessons = Lesson(str(tiny_qwen), batches(5, 3, steps=4), lora=lora)
    expected = learn(SINGLE_RANK, lessons)
    found: list[Learned] = []
    for step, size in enumerate((1, 2, 4, 1)):
        before, after = (tmp_path / str(number) / "agent_0" for number in (step, step + 1))
        after.mkdir(parents=True)
        part = replace(
            lessons,
            batches=lessons.batches[step : step + 1],
            load=str(before) if step else None,
            save=str(after),
            export=str(tmp_path / f"model_{step}"),
        )
        found.append(learn(SINGLE_RANK, part) if size == 1 else run_ranks(size, learn, part)[0])
    learned = replace(found[-1], stats=[stats for part in found for stats in part.stats], gap=expected.gap)
    assert_same(learned, expected)
    for step, part in enumerate(found):
        exported = AutoModelForCausalLM.from_pretrained(tmp_path / f"model_{step}")
        assert type(exported) is Qwen2ForCausalLM
        assert all(torch.equal(exported.get_parameter(name), tensor) for name, tensor in part.weights.items())


def load_damaged(ranks: RankGroup, folder: str, saved: str) -> str:
    learner = tiny_learner(Path(folder), ranks=ranks)
    with pytest.raises(UserError) as error:
        learner.load(saved, 1)
    return str(error.value)


def test_an_error_names_damaged_shards(tiny_policy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "step_000001" / "agent_0"
    folder.mkdir(parents=True)
    run_ranks(2, learn, Lesson(str(tiny_policy), batches(3, 3, steps=1), save=str(folder)))
    shard = folder / "shards" / "__1_0.distcp"
    shard.write_bytes(shard.read_bytes()[:100])
    for line in (
        *run_ranks(2, load_damaged, str(tiny_policy), str(folder)),
        load_damaged(SINGLE_RANK, str(tiny_policy), str(folder)),
    ):
        assert line.startswith(f"{folder} is damaged")


def be_killed(ranks: RankGroup, folder: str) -> float:
    """Kill rank 1, and return the seconds until rank 0 fails."""
    learner = tiny_learner(Path(folder), ranks=ranks)
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(RuntimeError) as error:
        learner.update(batches(3, 3, steps=1)[0])
    assert is_peer_failure(error.value), error.value
    return time.monotonic() - begun


def test_ranks_fail_soon_after_another_rank_is_killed(tiny_policy: Path) -> None:
    seconds = run_ranks(2, be_killed, str(tiny_policy), mortal=True)[0]
    assert seconds < 10


def listened_on(ranks: RankGroup) -> set[str]:
    return {c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}


def test_ranks_on_one_machine_listen_on_localhost_only() -> None:
    assert set().union(*run_ranks(2, listened_on)) == {"127.0.0.1"}
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.1") is None


def held(ranks: RankGroup, folder: str) -> tuple[int, int]:
    """Return the size of this rank's shards, and of all weights."""
    learner = tiny_learner(Path(folder), ranks=ranks)
    own = [parameter.to_local().untyped_storage() for parameter in learner.policy.parameters()]
    kept = {storage.data_ptr(): storage.nbytes() // 4 for storage in own if storage.nbytes()}
    return sum(kept.values()), sum(parameter.numel() for parameter in learner.policy.parameters())


def test_a_rank_holds_only_its_shard(tiny_policy: Path) -> None:
    (first, whole), (second, _) = run_ranks(2, held, str(tiny_policy))
    assert max(first, second) <= whole / 2 + 100
