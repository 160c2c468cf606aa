"""Sparse weight updates reproduce the weights exactly, whatever changed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning.policy_model import load_policy
from marl_ray.toy import BASE_PATH
from marl_ray.weights.deltas import COLUMNS, MAX_GAP, WORD_TYPES, Checksum, Snapshot, WeightUpdate, to_tensor
from marl_ray.weights.receiver import Acknowledgement
from marl_ray.weights.sender import CastSource, WeightSender, WeightSyncError

Weights = list[tuple[str, torch.Tensor]]
SHAPES = ((), (0,), (1,), (7,), (3, 5), (2, 3, 4), (MAX_GAP * 2 + 3,))


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(WORD_TYPES[tensor.element_size()]).numpy().tobytes()


def same(a: Weights, b: Weights) -> bool:
    """Return True if names, shapes, dtypes and bits are equal; NaNs compare by their bits."""
    return [(n, t.shape, t.dtype, bits(t)) for n, t in a] == [(n, t.shape, t.dtype, bits(t)) for n, t in b]


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    shapes=st.lists(st.sampled_from(SHAPES), max_size=4),
    shares=st.lists(st.sampled_from([0.0, 1e-5, 0.01, 0.3, 0.6, 1.0]), min_size=1, max_size=3),
)
def test_a_snapshot_and_its_deltas_give_the_weights(
    seed: int, dtype: torch.dtype, shapes: Sequence[tuple[int, ...]], shares: Sequence[float]
) -> None:
    random = np.random.default_rng(seed)

    def numbers(shape: tuple[int, ...]) -> torch.Tensor:
        """Return random bits, including NaN and -0."""
        raw = random.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
        return torch.from_numpy(raw.view(f"i{dtype.itemsize}")[..., 0]).view(dtype)

    weights = [(f"w{i}", numbers(shape)) for i, shape in enumerate(shapes)]
    sender, receiver = Snapshot(), Snapshot()
    for base in (sender, receiver):
        assert same(list(base.reset(weights)), weights)
    for share in shares:
        weights = [
            (name, torch.where(torch.from_numpy(np.asarray(random.random(t.shape) < share)), numbers(t.shape), t))
            for name, t in weights
        ]
        deltas = list(sender.diff(weights))
        full = sum(tensor.nbytes for _, tensor in weights)
        assert WeightUpdate(deltas).nbytes <= full * 1.001 + 8 * len(deltas)
        assert share or sender.changed == 0
        assert same(list(receiver.apply(deltas)), weights)
        complete = [(delta.name, to_tensor(delta)) for delta in deltas if delta.gaps is None]
        assert same(complete, [(name, tensor) for name, tensor in weights if name in dict(complete)])


def test_one_change_in_a_large_tensor_is_a_few_bytes() -> None:
    before = torch.zeros(10 * MAX_GAP, dtype=torch.bfloat16)
    base = Snapshot()
    list(base.reset([("w", before)]))
    after = before.clone()
    after[-1] = 1.0
    (delta,) = base.diff([("w", after)])
    assert delta.nbytes == 10 * (2 + 2)
    assert base.changed == 1 / after.numel()


@dataclass
class Generators:
    """Fake generators, each with a snapshot of the weights as in `StoreEngine`, and with a name and an incarnation."""

    bases: dict[tuple[ActorId, int], Snapshot]
    failed: dict[ActorId, str] = field(default_factory=dict)
    messages: list[WeightUpdate] = field(default_factory=list)
    lie: int = 0

    @property
    def members(self) -> tuple[tuple[ActorId, int], ...]:
        return tuple(self.bases)

    def update_weights(self, version: int, message: WeightUpdate) -> list[Acknowledgement]:
        self.messages.append(message)
        acknowledgements = []
        for (name, _), base in self.bases.items():
            checksum = Checksum()
            if message.base is None:
                weights = base.reset((delta.name, to_tensor(delta)) for delta in message.deltas)
            else:
                assert base.checksum == message.base
                weights = base.apply(message.deltas)
            list(checksum.watch(weights))
            base.checksum = checksum.value
            acknowledgements.append(Acknowledgement(name, version, checksum.value + self.lie))
        return acknowledgements


def member(replica: int, incarnation: int) -> tuple[ActorId, int]:
    return ActorId("generator", PolicyId((0,)), replica), incarnation


def test_sparse_updates_go_only_to_generators_with_the_previous_weights() -> None:
    model = load_policy(str(BASE_PATH), False, torch.device("cpu"))
    weight_sender = WeightSender(CastSource(model, torch.bfloat16), "store")
    values = sum(p.numel() for p in model.parameters())
    full, row = 2 * values, model.get_input_embeddings().weight[0].detach()
    first, second = Generators({member(0, 1): Snapshot()}), Generators({member(1, 1): Snapshot()})

    def send(version: int, *groups: Generators) -> tuple[int, float | None, bool]:
        """Change some weights and send them; return bytes, changed fraction, and whether the update is sparse."""
        row.add_(1.0)
        receivers: Any = Generators({m: b for group in groups for m, b in group.bases.items()}, lie=groups[0].lie)
        result = weight_sender.update_weights(version, receivers)
        return result.sent_bytes, result.changed, receivers.messages[0].base is not None

    few = (row.numel() * (2 + 2), row.numel() / values, True)
    assert send(0, first) == (full, None, False), "the first time"
    assert send(1, first) == few
    assert send(2, first, second) == (full, None, False), "a further generator without a snapshot"
    assert send(3, first, second) == few
    assert send(4, second) == few, "one generator, while the other one is away"
    assert send(5, first, second) == (full, None, False), "the other generator missed a version"
    reborn = Generators({member(1, 2): Snapshot()})
    assert send(6, first, reborn) == (full, None, False), "a new incarnation has no snapshot"
    assert send(7, first, reborn) == few
    first.lie = 1
    with pytest.raises(WeightSyncError):
        send(8, first)
    first.lie = 0
    assert send(9, first, reborn) == (full, None, False), (
        "the snapshot of a generator that did not acknowledge is unknown"
    )


@pytest.mark.parametrize(
    ("dtype", "sparse", "is_sparse"),
    [
        (torch.bfloat16, None, True),
        (torch.bfloat16, False, False),
        (torch.float32, None, False),
        (torch.float32, True, True),
    ],
)
def test_sparse_updates_are_the_default_for_16_bit_weights(
    dtype: torch.dtype, sparse: bool | None, is_sparse: bool
) -> None:
    model = load_policy(str(BASE_PATH), False, torch.device("cpu"))
    weight_sender = WeightSender(CastSource(model, dtype), "store", sparse)
    receivers: Any = Generators({member(0, 1): Snapshot()})
    for version in (0, 1):
        weight_sender.update_weights(version, receivers)
    assert [message.base is not None for message in receivers.messages] == [False, is_sparse]
    assert [message.keep for message in receivers.messages] == [is_sparse, is_sparse]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_two_exchanged_words_change_the_checksum(dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    original = torch.randint(0, 250, (3 * COLUMNS + 77,), generator=random).to(dtype)
    expected = checksum_of(original)
    assert checksum_of(original.clone()) == expected
    places = (0, 1, 2, COLUMNS, COLUMNS + 1, 2 * COLUMNS, 3 * COLUMNS, 3 * COLUMNS + 1, 3 * COLUMNS + 76)
    for first, second in itertools.combinations(places, 2):
        changed = original.clone()
        changed[first], changed[second] = 1, 2
        before = checksum_of(changed)
        changed[first], changed[second] = 2, 1
        assert checksum_of(changed) != before, (first, second)


def checksum_of(tensor: torch.Tensor) -> int:
    checksum = Checksum()
    list(checksum.watch([("w", tensor)]))
    return checksum.value
