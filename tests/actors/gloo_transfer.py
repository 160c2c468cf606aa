"""Actors that receive and send weights by the NCCL transfer, with gloo in place of NCCL and CPUs in place of GPUs."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist

from marl_ray.actors.engine import Engine
from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.handle import Actor, Handle
from marl_ray.actors.weight_update_client import WeightUpdateClient
from marl_ray.core.ids import ActorId
from marl_ray.learning.policy_model import load_policy
from marl_ray.toy import BASE_PATH
from marl_ray.weights import sender
from marl_ray.weights.receiver import WeightSyncResult
from marl_ray.weights.sender import CastSource, WeightSender
from tests.actors.helpers import MODEL, SPEC
from tests.actors.stub_engine import use_stub_engine

SEND_WITHIN_S = 600.0


class GlooCommunicator:
    """Gloo with the behaviour of NCCL: no timeout, no error if another process is lost, and no end except `destroy`.

    The process kills itself instead of broadcast number `fatal`; broadcast number `failing` raises an error of NCCL.
    """

    fatal = failing = -1
    groups: ClassVar[list[Any]] = []
    """All groups, because the destructor of a gloo group waits for its operations."""

    def __init__(self, group: Any) -> None:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(interface="lo")]
        options._timeout = timedelta(hours=1)
        store = dist.PrefixStore("gloo", group.store)
        self._group = dist.ProcessGroupGloo(store, group.rank, group.world_size, options)
        self.groups.append(self._group)
        self._destroyed, self._count = threading.Event(), 0

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any) -> None:
        if self._count == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._count == self.failing:
            GlooCommunicator.failing = -1
            raise RuntimeError("NCCL error: unhandled system error")
        self._count += 1
        options, done = dist.BroadcastOptions(), threading.Event()
        options.rootRank = src
        work = self._group.broadcast([tensor], options)

        def wait() -> None:
            with contextlib.suppress(RuntimeError):
                work.wait()
                done.set()

        threading.Thread(target=wait, daemon=True).start()
        while not done.wait(0.005) and not self._destroyed.is_set():
            pass

    def destroy(self) -> None:
        self._destroyed.set()


def use_gloo(patch: pytest.MonkeyPatch) -> None:
    """Replace NCCL and CUDA streams in this process, and send messages of a few tensors."""
    from vllm.distributed.weight_transfer import packed_tensor
    from vllm.model_executor.model_loader import reload

    from marl_ray.weights import nccl_transfer

    stream = SimpleNamespace(synchronize=lambda: None)
    patch.setattr(packed_tensor, "_get_streams", lambda *_: (stream, stream))
    patch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    patch.setattr(torch.accelerator, "synchronize", lambda: None)
    patch.setattr(reload, "initialize_layerwise_reload", lambda model: None)
    patch.setattr(reload, "finalize_layerwise_reload", lambda model, config: None)
    patch.setattr(nccl_transfer, "make_communicator", GlooCommunicator)
    patch.setattr(sender, "MESSAGE_BYTES", 2**10)


class Model:
    """A model that keeps the loaded weights. The process kills itself when it loads tensor number `fatal`."""

    def __init__(self) -> None:
        self.loaded: dict[str, torch.Tensor] = {}
        self.fatal = -1

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            if len(self.loaded) == self.fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            self.loaded[name] = tensor


class Receiver(GenerationActor):
    """A generation actor whose engine is a stub with the real transfer engine."""

    def __init__(self, id: ActorId) -> None:
        super().__init__(id, SPEC, MODEL)

    async def start(self) -> list[str]:
        from marl_ray.weights.vllm_worker import SummedNcclEngine, WorkerExtension

        class Worker(WorkerExtension):
            """The methods of vLLM's worker."""

            def __init__(self) -> None:
                config: Any = SimpleNamespace(parallel_config=SimpleNamespace(rank=0), model_config=None)
                self.model: Any = Model()
                self.weight_transfer_engine = SummedNcclEngine(config, config, torch.device("cpu"), self.model)
                self._weight_update_active = False

            def init_weight_transfer_engine(self, info: dict[str, Any]) -> None:
                self.weight_transfer_engine.init_transfer_engine(self.weight_transfer_engine.parse_init_info(info))

            def shutdown_weight_transfer_engine(self) -> None:
                assert not self._weight_update_active
                self.weight_transfer_engine.shutdown()

            def start_weight_update(self) -> None:
                assert not self._weight_update_active
                self.model.loaded = {}
                self.weight_transfer_engine.start_weight_update()
                self._weight_update_active = True

            def update_weights(self, info: dict[str, Any]) -> None:
                self.weight_transfer_engine.update_weights(info)

            def finish_weight_update(self) -> None:
                self.weight_transfer_engine.finish_weight_update()
                self._weight_update_active = False

        use_gloo(pytest.MonkeyPatch())
        with pytest.MonkeyPatch.context() as patch:
            use_stub_engine(patch, Worker)
            self.engine = Engine(SPEC, None)
        return []

    async def die_at(self, tensor: int) -> None:
        def set_fatal(engine: Any) -> None:
            engine.worker.model.fatal = tensor

        await self.engine.call(set_fatal)

    async def fail_in(self, broadcast: int) -> None:
        GlooCommunicator.failing = broadcast


def make_sender() -> WeightSender:
    return WeightSender(CastSource(load_policy(str(BASE_PATH), False, torch.device("cpu")), torch.bfloat16), "nccl")


def send(
    weight_sender: WeightSender, version: int, receivers: list[Handle[GenerationActor]], incarnation: int
) -> WeightSyncResult:
    client = WeightUpdateClient(receivers, 1, incarnation, SEND_WITHIN_S)
    client.fence()
    return weight_sender.update_weights(version, client)


class Sender(Actor):
    """A process that kills itself in the middle of an update."""

    def start(self) -> list[str]:
        use_gloo(pytest.MonkeyPatch())
        return []

    def heartbeat(self) -> None:
        pass

    def send(self, receivers: list[Handle[GenerationActor]], fatal: int) -> None:
        GlooCommunicator.fatal = fatal
        send(make_sender(), 0, receivers, 1)
