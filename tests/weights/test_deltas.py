"""Changes that are sent in place of weights make the weights, whatever changed."""

from __future__ import annotations

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
from marl_ray.weights.checksum import WORD_TYPES, Checksum
from marl_ray.weights.deltas import LONGEST_GAP, Snapshot, WeightUpdate, unpacked
from marl_ray.weights.receiver import Acknowledgement
from marl_ray.weights.sender import WeightSender, WeightSyncError

Weights = list[tuple[str, torch.Tensor]]
SHAPES = ((), (0,), (1,), (7,), (3, 5), (2, 3, 4), (LONGEST_GAP * 2 + 3,))


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(WORD_TYPES[tensor.element_size()]).numpy().tobytes()


def same(a: Weights, b: Weights) -> bool:
    """Names, shapes, dtypes and bits; NaN is what it is."""
    return [(n, t.shape, t.dtype, bits(t)) for n, t in a] == [(n, t.shape, t.dtype, bits(t)) for n, t in b]


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    shapes=st.lists(st.sampled_from(SHAPES), max_size=4),
    shares=st.lists(st.sampled_from([0.0, 1e-5, 0.01, 0.3, 0.6, 1.0]), min_size=1, max_size=3),
)
def test_a_base_and_pieces_make_the_weights(
    seed: int, dtype: torch.dtype, shapes: Sequence[tuple[int, ...]], shares: Sequence[float]
) -> None:
    random = np.random.default_rng(seed)

    def numbers(shape: tuple[int, ...]) -> torch.Tensor:
        """Any bits, those of NaN and -0 too."""
        drawn = random.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
        return torch.from_numpy(drawn.view(f"i{dtype.itemsize}")[..., 0]).view(dtype)

    weights = [(f"w{i}", numbers(shape)) for i, shape in enumerate(shapes)]
    sender, receiver = Snapshot(), Snapshot()
    for base in (sender, receiver):
        assert same(list(base.kept(weights)), weights)
    for share in shares:
        weights = [
            (name, torch.where(torch.from_numpy(np.asarray(random.random(t.shape) < share)), numbers(t.shape), t))
            for name, t in weights
        ]
        pieces = list(sender.rewritten(weights))
        full = sum(tensor.nbytes for _, tensor in weights)
        assert WeightUpdate(pieces).nbytes <= full * 1.001 + 8 * len(pieces)
        assert share or sender.changed == 0
        assert same(list(receiver.applied(pieces)), weights)
        wholes = [(piece.name, unpacked(piece)) for piece in pieces if piece.gaps is None]
        assert same(wholes, [(name, tensor) for name, tensor in weights if name in dict(wholes)])


def test_one_change_in_a_large_tensor_is_a_few_bytes() -> None:
    before = torch.zeros(10 * LONGEST_GAP, dtype=torch.bfloat16)
    base = Snapshot()
    list(base.kept([("w", before)]))
    after = before.clone()
    after[-1] = 1.0
    (piece,) = base.rewritten([("w", after)])
    assert piece.nbytes == 10 * (2 + 2)
    assert base.changed == 1 / after.numel()


@dataclass
class Generators:
    """Stand in for generators: each has its copy of the weights, as `StoreEngine` has, and a name and life."""

    bases: dict[tuple[ActorId, int], Snapshot]
    failed: dict[ActorId, str] = field(default_factory=dict)
    messages: list[WeightUpdate] = field(default_factory=list)
    lie: int = 0

    @property
    def members(self) -> tuple[tuple[ActorId, int], ...]:
        return tuple(self.bases)

    def apply_update(self, version: int, message: WeightUpdate) -> list[Acknowledgement]:
        self.messages.append(message)
        acknowledgements = []
        for (name, _), base in self.bases.items():
            checksum = Checksum()
            if message.base is None:
                weights = base.kept((piece.name, unpacked(piece)) for piece in message.pieces)
            else:
                assert base.checksum == message.base
                weights = base.applied(message.pieces)
            list(checksum.watch(weights))
            base.checksum = checksum.value
            acknowledgements.append(Acknowledgement(name, version, checksum.value + self.lie))
        return acknowledgements


def member(replica: int, life: int) -> tuple[ActorId, int]:
    return ActorId("generator", PolicyId((0,)), replica), life


def test_changes_are_sent_to_those_that_hold_what_they_change() -> None:
    model = load_policy(str(BASE_PATH), False, torch.device("cpu"))
    publisher = WeightSender(model, torch.bfloat16, "store")
    values = sum(p.numel() for p in model.parameters())
    full, row = 2 * values, model.get_input_embeddings().weight[0].detach()
    first, second = Generators({member(0, 1): Snapshot()}), Generators({member(1, 1): Snapshot()})

    def publish(version: int, *groups: Generators) -> tuple[int, float | None, bool]:
        """Of a publication after a little learning: bytes, share that changed, and whether it needs a base."""
        row.add_(1.0)
        receivers: Any = Generators({m: b for group in groups for m, b in group.bases.items()}, lie=groups[0].lie)
        delivery = publisher.update_weights(version, receivers)
        return delivery.sent_bytes, delivery.changed, receivers.messages[0].base is not None

    few = (row.numel() * (2 + 2), row.numel() / values, True)
    assert publish(0, first) == (full, None, False), "the first time"
    assert publish(1, first) == few
    assert publish(2, first, second) == (full, None, False), "one more, which holds nothing"
    assert publish(3, first, second) == few
    assert publish(4, second) == few, "one of them alone, while the other one is gone"
    assert publish(5, first, second) == (full, None, False), "the other one has missed a version"
    reborn = Generators({member(1, 2): Snapshot()})
    assert publish(6, first, reborn) == (full, None, False), "a new life holds nothing"
    assert publish(7, first, reborn) == few
    first.lie = 1
    with pytest.raises(WeightSyncError):
        publish(8, first)
    first.lie = 0
    assert publish(9, first, reborn) == (full, None, False), "nobody knows what those hold that did not acknowledge"


@pytest.mark.parametrize(
    ("dtype", "sparse", "looks"),
    [
        (torch.bfloat16, None, True),
        (torch.bfloat16, False, False),
        (torch.float32, None, False),
        (torch.float32, True, True),
    ],
)
def test_who_looks_for_changes(dtype: torch.dtype, sparse: bool | None, looks: bool) -> None:
    model = load_policy(str(BASE_PATH), False, torch.device("cpu"))
    publisher = WeightSender(model, dtype, "store", sparse=sparse)
    receivers: Any = Generators({member(0, 1): Snapshot()})
    for version in (0, 1):
        publisher.update_weights(version, receivers)
    assert [message.base is not None for message in receivers.messages] == [False, looks]
    assert [message.keep for message in receivers.messages] == [looks, looks]
