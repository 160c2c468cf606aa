"""Transfers by CUDA IPC from two ranks: vLLM's sending engine over gloo, with handles that are plain numbers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from vllm.distributed.weight_transfer import ipc_engine

from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning.ranks import RankGroup
from marl_ray.learning.sharding import WeightGatherer
from marl_ray.weights.deltas import Checksum
from marl_ray.weights.ipc_transfer import make_ipc_engine, send_and_release
from marl_ray.weights.receiver import Acknowledgement, ReceiverLostError
from marl_ray.weights.sender import CastSource, WeightSender
from tests.learning.builders import save_tiny_policy, tiny_learner
from tests.learning.rank_processes import run_ranks

GENERATORS = [ActorId("generator", PolicyId((0,)), replica) for replica in range(2)]
MESSAGES = 3


class Receivers:
    """Two generators, of which the second is lost at the second message of the first transfer. `released` is a file
    that the other rank writes when it has released its memory."""

    def __init__(self, released: Path) -> None:
        self.released = released
        self.members = tuple((id, 1) for id in GENERATORS)
        self.failed: dict[ActorId, str] = {}
        self.handles: list[dict[str, float]] = []
        self.stages: list[str] = []
        self.checksum = 0

    def run_stage(self, stage: str, info: dict[str, Any] | None = None, on_loss: Any = None) -> None:
        self.stages.append(stage)
        if stage == "start_weight_update":
            self.handles = []
        if stage == "update_weights":
            assert info is not None
            self.handles.append(info["ipc_handles"])
            if len(self.handles) == 2 and len(self.members) == 2:
                self.members, self.failed = self.members[:1], {GENERATORS[1]: "killed"}
                raise ReceiverLostError("killed")

    def update_weights(self, version: int, update: None) -> list[Acknowledgement]:
        """Serve, for which an engine on the other rank's GPU allocates its KV cache."""
        assert self.released.read_text() == "xx", "once per transfer"
        return [Acknowledgement(GENERATORS[0], version, self.checksum)]


def chunks(iterator: Iterator[tuple[str, torch.Tensor]], gpu_uuid: str, **_: Any) -> Iterator[Any]:
    """Yield messages as vLLM's producer does, with the sum of a message as its handle."""
    weights = list(iterator)
    size = -(-len(weights) // MESSAGES)
    for start in range(0, len(weights), size):
        part = weights[start : start + size]
        yield SimpleNamespace(
            names=[name for name, _ in part],
            dtype_names=["bfloat16"] * len(part),
            shapes=[list(tensor.shape) for _, tensor in part],
            tensor_sizes=[tensor.nbytes for _, tensor in part],
            ipc_handle={gpu_uuid: sum(float(tensor.float().sum()) for _, tensor in part)},
        )


def send_from_rank(
    ranks: RankGroup, folder: str
) -> tuple[list[dict[str, float]], list[str], dict[ActorId, str]] | None:
    learner = tiny_learner(folder, ranks=ranks)
    weights = WeightGatherer(learner.policy, ranks, torch.bfloat16, torch.device("cpu"))
    properties = SimpleNamespace(uuid=f"GPU-{ranks.rank}")
    released = Path(folder, "released")

    def empty_cache() -> None:
        if ranks.rank:
            with released.open("a") as file:
                file.write("x")

    with (
        mock.patch.object(ipc_engine, "packed_ipc_producer", chunks),
        mock.patch.object(torch.accelerator, "current_device_index", return_value=0),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=properties),
        mock.patch.multiple(torch.cuda, ipc_collect=lambda: None, synchronize=lambda *_: None, empty_cache=empty_cache),
    ):
        source = CastSource(learner.policy, torch.bfloat16, weights)
        if ranks.rank:
            weights.accompany = partial(send_and_release, make_ipc_engine(source, source.buffer_bytes))
        sender, receivers = WeightSender(source, "ipc"), Receivers(released)

        def send() -> Any:
            checksum = Checksum()
            list(checksum.watch(source))
            receivers.checksum = checksum.value
            return sender.update_weights(1, receivers)  # type: ignore[arg-type]

        result = weights.run_on_rank_zero(send)
        return None if result is None else (receivers.handles, receivers.stages, dict(result.failed))


@pytest.mark.slow
def test_all_ranks_send_the_same_messages_and_a_lost_generator_does_not_stop_them(tmp_path: Path) -> None:
    save_tiny_policy(tmp_path)
    results = run_ranks(2, send_from_rank, str(tmp_path))
    assert results[1] is None
    handles, stages, failed = results[0]
    assert failed == {GENERATORS[1]: "killed"}
    assert len(handles) == MESSAGES
    for message in handles:
        assert set(message) == {"GPU-0", "GPU-1"}
        assert message["GPU-0"] == message["GPU-1"] != 0, "both ranks have all weights"
    first, second = stages.index("start_weight_update"), len(stages) - stages[::-1].index("start_weight_update")
    assert stages[first:second].count("update_weights") == 2, "calls after the loss are skipped"
    assert stages[-1] == "finish_weight_update"
