"""The sending side of weight sync, inside a learner.

`Publisher` sends one version of the policy to every generator of the agent and returns when each has
acknowledged version and checksum. Transports: `store` (CPU) puts the arrays into Ray's object store once;
`nccl` and `ipc` use vLLM's trainer-side engines, imported only then.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any, Literal

import ray
import torch

from marl_ray.core.messages import WeightVersion
from marl_ray.weights.checksum import Checksum

TransportName = Literal["store", "nccl", "ipc"]


class SyncError(RuntimeError):
    """A generator did not take over the learner's weights."""


class GeneratorClient:
    """vLLM's weight-sync control plane over the generator actors of one agent.

    Each call goes to all of them at once. One update, from its start to its commit, has `deadline_s`.
    """

    def __init__(self, generators: list[Any], ranks_per_generator: int, deadline_s: float) -> None:
        self.generators = generators
        self.ranks_per_generator = ranks_per_generator
        self.deadline_s = deadline_s
        self._until = 0.0

    def begin(self) -> None:
        """The deadline runs from here."""
        self._until = time.monotonic() + self.deadline_s

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Start the rendezvous; engine i's workers come after those of the engines before it."""
        infos = []
        for index in range(len(self.generators)):
            info = dict(init_info)
            if "rank_offset" in info:
                info["rank_offset"] += index * self.ranks_per_generator
            infos.append(info)
        self._wait([g.weight_update.remote("init", i) for g, i in zip(self.generators, infos, strict=True)], "join")

    def start_weight_update(self) -> None:
        self._wait([g.weight_update.remote("start") for g in self.generators], "start")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._wait([g.weight_update.remote("update", update_info) for g in self.generators], "receive")

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._wait([g.weight_update.remote("finish") for g in self.generators], "finish")

    def commit(self, version: WeightVersion) -> list[tuple[WeightVersion, int]]:
        """Label the new weights; returns each generator's (version, checksum)."""
        return self._wait([g.commit_weights.remote(version) for g in self.generators], "commit")

    def _wait(self, calls: list[Any], verb: str) -> list[Any]:
        try:
            return ray.get(calls, timeout=max(0.0, self._until - time.monotonic()))
        except ray.exceptions.GetTimeoutError:
            _, late = ray.wait(calls, num_returns=len(calls), timeout=0)
            which = [i for i, call in enumerate(calls) if call in late]
            raise SyncError(
                f"generator {which} did not {verb} a weight update within {self.deadline_s:g} s "
                "(resources.deadlines.sync_s)"
            ) from None


class Publisher:
    """Pushes one agent's weights to its generators.

    `model` is the learner's module; `wire_dtype` is the dtype of the engines' weights.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        wire_dtype: torch.dtype,
        transport: TransportName,
        client: GeneratorClient,
    ) -> None:
        self.source = CastSource(model, wire_dtype)
        self.client = client
        self.transport = transport
        self.checksum = 0
        """Of the weights last sent."""
        self._vllm_engine = None if transport == "store" else self._join(transport)

    def publish(self, version: WeightVersion) -> int:
        """Send the weights as `version`; returns their checksum. Raises SyncError."""
        self.client.begin()
        checksum = Checksum()
        if self._vllm_engine is None:
            payload = [
                (name, tensor.reshape(-1).view(torch.uint8).numpy(), _dtype_name(tensor), tuple(tensor.shape))
                for name, tensor in checksum.watch(self.source)
            ]
            self.client.start_weight_update()
            self.client.update_weights({"weights_ref": [ray.put(payload)]})
            self.client.finish_weight_update()
        else:
            for _ in checksum.watch(self.source):
                pass
            self._vllm_engine.send_weights()
        self.checksum = checksum.value
        return self._commit(version)

    def relabel(self, version: WeightVersion) -> int:
        """What was sent last is `version` too; returns its checksum. Raises SyncError."""
        self.client.begin()
        return self._commit(version)

    def _commit(self, version: WeightVersion) -> int:
        for index, (got_version, got) in enumerate(self.client.commit(version)):
            if (got_version, got) != (version, self.checksum):
                raise SyncError(
                    f"generator {index} acknowledged version {got_version} with checksum {got}, the learner "
                    f"sent version {version} with {self.checksum}"
                )
        return self.checksum

    def _join(self, transport: TransportName) -> Any:
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

        self.client.begin()
        info: Any
        if transport == "ipc":
            from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

            info = IPCTrainerInitInfo(rank=0)
        else:
            from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

            world = 1 + len(self.client.generators) * self.client.ranks_per_generator
            address = ray.util.get_node_ip_address()
            info = NCCLTrainerInitInfo(rank=0, master_address=address, master_port=_free_port(), world_size=world)
        source: Any = self.source  # has the two methods of vLLM's WeightSource that these engines use
        client: Any = self.client
        return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


class CastSource:
    """The parameters, detached and cast to the wire dtype, in a fixed order (vLLM's `WeightSource`).

    Under the names of the model's files, which are those that engines load: transformers may have given them others
    (gpt_neox), or have stacked them (experts).
    """

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        shapes = {n: torch.empty_like(p, dtype=dtype, device="meta") for n, p in model.named_parameters()}
        self.shapes = self._as_in_files(shapes)
        self.same_names = set(self.shapes) == set(shapes)

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, self.dtype, tuple(shape.shape)) for name, shape in self.shapes.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self.same_names:
            parameters = dict(self.model.named_parameters())
            for name in self.shapes:
                yield name, parameters[name].detach().to(self.dtype).contiguous()
        else:
            cast = {name: parameter.detach().to(self.dtype) for name, parameter in self.model.named_parameters()}
            for name, tensor in self._as_in_files(cast).items():
                yield name, tensor.contiguous()

    def _as_in_files(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        from transformers.core_model_loading import revert_weight_conversion

        model: Any = self.model
        return revert_weight_conversion(model, tensors)


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
