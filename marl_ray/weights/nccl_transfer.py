"""NCCL broadcasts of weights that end if the sender or a receiver is lost.

vLLM's NCCL communicator has neither a timeout nor a watchdog: if a process dies, a broadcast never ends in the others.
The sender learns of a loss from its calls to the generators. A second thread of the sender then aborts its communicator
and sets a key in the store of the rendezvous. In every receiver a thread waits for this key, or for the end of the
store, and aborts the receiver's communicator. The sender can then repeat the transfer without the lost receiver.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
from vllm.distributed.utils import StatelessProcessGroup
from vllm.distributed.weight_transfer.nccl_common import worker_init_payload
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLTrainerWeightTransferEngine,
    NCCLWeightTransferInitInfo,
    NCCLWeightTransferUpdateInfo,
)
from vllm.utils.nccl import unpinned_nccl_env

from marl_ray.weights.vllm_private import is_nccl_error

ABORTED = "aborted"
"""Key in the store that is set when the transfer has ended."""
JOINED = "joined"
"""Key in the store of the number of processes that have joined."""
READY = "ready"
"""Key in the store that is set when all processes have joined."""
SESSION_LIMIT = timedelta(days=20)
"""Longest wait for the end of a session; the store's sockets count milliseconds in 32 bits."""


class TransferAbortedError(RuntimeError):
    """An operation of an aborted communicator."""


def is_transfer_failure(error: BaseException) -> bool:
    """Return whether the loss of another process can be the cause of `error`."""
    return isinstance(error, TransferAbortedError | dist.DistError) or is_nccl_error(error)


def make_communicator(group: StatelessProcessGroup) -> Any:
    """Return vLLM's NCCL communicator on this process's current GPU."""
    with unpinned_nccl_env():
        return PyNcclCommunicator(group, device=torch.accelerator.current_device_index())


class NcclGroup:
    """The communicator of one process in a weight transfer, with the methods that vLLM's engines use."""

    def __init__(self, store: Any) -> None:
        self.aborted = False
        self._store = store
        self._control = self._store.clone()  # a wait blocks all other calls of a client
        self._communicator: Any = None
        self._abort_lock = threading.Lock()

    def join(self, rank: int, size: int) -> None:
        """Join the other processes. Raises TransferAbortedError if one of them is lost before all have joined; NCCL
        cannot be interrupted while it waits for other ranks."""
        if self._store.add(JOINED, 1) == size:
            self._store.set(READY, "yes")
        self._store.wait([READY])
        if self._store.check([ABORTED]):
            raise TransferAbortedError("a process was lost before all had joined")
        self._communicator = make_communicator(StatelessProcessGroup(rank, size, self._store))
        if rank:
            threading.Thread(target=self._watch, name="weight-transfer", daemon=True).start()

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        """Start a broadcast. Raises TransferAbortedError after `abort`."""
        communicator = self._communicator
        if self.aborted:
            raise TransferAbortedError("the weight transfer was aborted")
        communicator.broadcast(tensor, src=src, stream=stream)

    def abort(self) -> None:
        """End the broadcasts in progress in this process, from any thread, and refuse further ones.

        Several threads may call this method at once, but NCCL frees an aborted communicator, so only one aborts it.
        """
        self.aborted = True
        with self._abort_lock:
            communicator = self._communicator
            self._communicator = None
            if communicator is not None:
                communicator.destroy()

    destroy = abort  # vLLM's name

    def abort_all(self) -> None:
        """End the transfer in all processes. Only for the sender, whose process has the store."""
        self._control.set(ABORTED, "aborted")
        self._control.set(READY, "aborted")  # wakes processes that wait in `join`
        self.abort()

    @contextlib.contextmanager
    def contain_failures(self) -> Iterator[None]:
        """Abort in place of raising an error if the transfer fails. All workers of an engine must return: vLLM's
        executor takes the answers that it has not read for the answers to its next call."""
        try:
            yield
        except RuntimeError as error:
            if not is_transfer_failure(error):
                raise
            self.abort()

    def _watch(self) -> None:
        with contextlib.suppress(dist.DistError):  # the sender's process has ended
            self._control.wait([ABORTED], SESSION_LIMIT)
        self.abort()


def join_as_receiver(info: NCCLWeightTransferInitInfo, rank: int) -> NcclGroup:
    """Join the sender's session as the worker number `rank` of this generator. See `NcclGroup.aborted` for failures."""
    assert info.master_address is not None
    assert info.master_port is not None
    store = dist.TCPStore(
        info.master_address, info.master_port, info.world_size, is_master=False, wait_for_workers=False
    )
    group = NcclGroup(store)
    with group.contain_failures():
        group.join(info.rank_offset + rank, info.world_size)
    return group


class NcclSender(NCCLTrainerWeightTransferEngine):
    """vLLM's sending engine with a session that ends when a receiver is lost.

    Args:
        client: makes vLLM's calls to all receivers, and calls `on_loss` as soon as one of them is lost.
        source: the weights.
        address: address of this node as reachable from the receivers.
        workers: total number of engine workers.
        buffer_bytes: size of a packed message.
    """

    model_update_group: Any

    def __init__(self, client: Any, source: Any, address: str, workers: int, buffer_bytes: int) -> None:
        super().__init__(client=client, source=source, packed_buffer_size_bytes=buffer_bytes)
        size = 1 + workers
        listener = socket.create_server((address, 0))
        port = listener.getsockname()[1]
        # With an open socket, because by default the store listens on all addresses.
        options: dict[str, Any] = {"wait_for_workers": False, "master_listen_fd": listener.detach()}
        group = NcclGroup(dist.TCPStore(address, port, size, is_master=True, **options))
        self.model_update_group = group
        client.on_loss = group.abort_all
        info = NCCLWeightTransferInitInfo(
            master_address=address,
            master_port=port,
            rank_offset=1,
            world_size=size,
            packed=self.packed,
            packed_buffer_size_bytes=buffer_bytes,
            packed_num_buffers=self.packed_num_buffers,
        )
        payload = worker_init_payload(info)
        self._run_with_receivers(lambda: client.init_weight_transfer_engine(payload), lambda: group.join(0, size))

    def send_weights(self) -> None:
        """Send all weights. Raises the client's error for a lost receiver."""
        assert self.source is not None
        source = self.source
        meta = source.metadata()
        info = NCCLWeightTransferUpdateInfo(
            names=[m.name for m in meta],
            dtype_names=[str(m.dtype).removeprefix("torch.") for m in meta],
            shapes=[list(m.shape) for m in meta],
        )
        receive = asdict(info)
        self.client.start_weight_update()
        self._run_with_receivers(lambda: self.client.update_weights(receive), lambda: self._broadcast(source, meta))
        self.client.finish_weight_update()
        self._post_send_sync()

    def shutdown(self) -> None:
        """End the session in all processes."""
        self.model_update_group.abort_all()

    def _run_with_receivers(self, call: Callable[[], None], own: Callable[[], None]) -> None:
        """Call the receivers in a second thread, and run `own` here at the same time."""
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(call)
            try:
                own()
            except BaseException as error:
                self.model_update_group.abort_all()
                lost = answer.exception()
                # The loss of a receiver is the cause, and the failure here its effect.
                if lost is not None and is_transfer_failure(error):
                    raise lost from error
                raise
            answer.result()
