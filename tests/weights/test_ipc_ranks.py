"""Transfers through the slabs of two ranks, which are files that both processes map in place of CUDA IPC."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning.ranks import RankGroup
from marl_ray.learning.sharding import WeightGatherer
from marl_ray.weights import sender, slab
from marl_ray.weights.receiver import Acknowledgement, ReceiverLostError
from marl_ray.weights.sender import CastSource, WeightSender
from tests.learning.builders import save_tiny_policy, tiny_learner
from tests.learning.rank_processes import run_ranks

GENERATORS = [ActorId("generator", PolicyId((0,)), replica) for replica in range(2)]
CPU = torch.device("cpu")


def open_file(path: str, nbytes: int) -> torch.Tensor:
    return torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8)


class Receivers:
    """Two generators, of which the second is lost at the second chunk of the first transfer."""

    def __init__(self) -> None:
        self.members = tuple((id, 1) for id in GENERATORS)
        self.failed: dict[ActorId, str] = {}
        self.slabs: dict[str, torch.Tensor] = {}
        self.chunks: list[tuple[int, bool]] = []
        """Number of each chunk of the last transfer, and whether both ranks had the same weights."""
        self.stages: list[str] = []
        self.writer: Any = None

    def run_stage(self, stage: str, info: dict[str, Any] | None = None, on_loss: Any = None) -> None:
        self.stages.append(stage)
        if stage == "init_weight_transfer_engine":
            assert info is not None
            self.slabs = {gpu: open_file(*handle) for gpu, handle in info["handles"].items()}
        if stage == "start_weight_update":
            self.chunks = []
        if stage == "update_weights":
            assert info is not None
            first, second = self.slabs["GPU-0"], self.slabs["GPU-1"]
            self.chunks.append((info["chunk"], bool(first.any()) and torch.equal(first, second)))
            if len(self.chunks) == 2 and len(self.members) == 2:
                self.members, self.failed = self.members[:1], {GENERATORS[1]: "killed"}
                raise ReceiverLostError("killed")

    def update_weights(self, version: int, update: None) -> list[Acknowledgement]:
        return [Acknowledgement(GENERATORS[0], version, self.writer.checksum.value)]


def send_from_rank(
    ranks: RankGroup, folder: str
) -> tuple[list[tuple[int, bool]], list[str], dict[ActorId, str]] | None:
    learner = tiny_learner(Path(folder), ranks=ranks)
    weights = WeightGatherer(learner.policy, ranks, torch.bfloat16, CPU)
    path = str(Path(folder, f"slab_{ranks.rank}"))
    with (
        mock.patch.object(sender, "MESSAGE_BYTES", 10_000),
        mock.patch.object(slab, "allocate_slab", lambda nbytes, device: open_file(path, nbytes)),
        mock.patch.object(slab, "export_slab", lambda tensor: {f"GPU-{ranks.rank}": (path, tensor.numel())}),
    ):
        source = CastSource(learner.policy, torch.bfloat16, weights, CPU)
        writer = source.slab_writer()
        weights.accompany = writer.send
        weight_sender, receivers = WeightSender(source, "ipc", slab=writer), Receivers()
        receivers.writer = writer
        result = weights.run_on_rank_zero(lambda: weight_sender.update_weights(1, receivers))  # type: ignore[arg-type]
        return None if result is None else (receivers.chunks, receivers.stages, dict(result.failed))


@pytest.mark.slow
def test_all_ranks_write_the_same_chunks_and_a_lost_generator_does_not_stop_them(tmp_path: Path) -> None:
    save_tiny_policy(tmp_path)
    results = run_ranks(2, send_from_rank, str(tmp_path))
    assert results[1] is None
    chunks, stages, failed = results[0]
    assert failed == {GENERATORS[1]: "killed"}
    assert len(chunks) > 2
    assert chunks == [(number, True) for number in range(len(chunks))]
    first, second = stages.index("start_weight_update"), len(stages) - stages[::-1].index("start_weight_update")
    assert stages[first:second].count("update_weights") == 2, "calls after the loss are skipped"
    assert stages[-1] == "finish_weight_update"
