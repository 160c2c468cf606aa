"""The rank group of one policy's learner: rendezvous and collective calls.

Ranks meet at a store that rank 0 serves for one incarnation of the group, and then communicate directly: with gloo
through host memory and with NCCL between GPUs. They listen on one address of the node, or on localhost if all ranks
share a machine. There is no authentication, so as with Ray the network between nodes must be private.

Every rank must make collective calls in the same order. A late rank is an error after `Rendezvous.timeout_s`, and a
rank that has died at once.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
SIOCGIFADDR = 0x8915
"""Linux request for the IPv4 address of a network interface (netdevice(7))."""


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The rank of this process, from 0, and the number of ranks."""

    rank: int = 0
    size: int = 1
    writers: dist.ProcessGroup | None = field(default=None, compare=False)
    """Group for the collective calls of threads that write checkpoints. In the default group their messages would mix
    with messages of training. None with a single rank."""

    @property
    def is_single(self) -> bool:
        """True if there is one rank, and thus no process group."""
        return self.size == 1

    def all_gather(self, mine: T) -> list[T]:
        """Return the values of all ranks in rank order; a collective call."""
        if self.is_single:
            return [mine]
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, mine)
        return values  # type: ignore[return-value]

    def broadcast(self, value: T) -> T:
        """Return the value of rank 0; a collective call."""
        if self.is_single:
            return value
        values = [value if self.rank == 0 else None]
        dist.broadcast_object_list(values, 0)
        return values[0]  # type: ignore[return-value]


SINGLE_RANK = RankGroup()


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Rank 0's address and port, the number of ranks, and the timeout of collective calls in seconds."""

    host: str
    port: int
    size: int
    timeout_s: float


def open_rendezvous(host: str, size: int, timeout_s: float) -> tuple[dist.TCPStore, Rendezvous]:
    """Return a store on `host`, one of this machine's addresses, and its rendezvous; the store serves as long as it
    exists."""
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        host,
        port,
        size,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        # By default the store opens a socket of its own, which listens on all addresses.
        master_listen_fd=listener.detach(),
    )
    return store, Rendezvous(host, port, size, timeout_s)


def join_rendezvous(
    rendezvous: Rendezvous, rank: int, address: str, store: dist.TCPStore | None = None, gpu: bool = False
) -> RankGroup:
    """Join the rank group and return when all ranks have joined. `address` is this node's; rank 0 passes its store.

    Raises an error that `is_peer_failure` recognises if a rank does not join.
    """
    timeout = timedelta(seconds=rendezvous.timeout_s)
    interface = interface_of(LOOPBACK if rendezvous.host == LOOPBACK else address)
    if interface is not None:  # by default gloo resolves the host name, often to another address
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if store is None:
        store = dist.TCPStore(rendezvous.host, rendezvous.port, rendezvous.size, is_master=False, timeout=timeout)
    options: dict[str, Any] = {"backend": "gloo"}
    if gpu:
        device = torch.device("cuda", torch.cuda.current_device())
        options = {"backend": "cpu:gloo,cuda:nccl", "device_id": device}
    dist.init_process_group(store=store, rank=rank, world_size=rendezvous.size, timeout=timeout, **options)
    return RankGroup(rank, rendezvous.size, dist.new_group(backend="gloo", timeout=timeout))


def is_peer_failure(error: BaseException) -> bool:
    """Return True if an error says that another rank is lost or late.

    gloo raises plain RuntimeErrors with the name of its source file; checkpoint errors wrap the errors of each rank.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    if isinstance(error, CheckpointException):
        return any(is_peer_failure(of_rank) for of_rank, _ in error.failures.values())
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and "gloo" in str(error).lower()


def interface_of(address: str) -> str | None:
    """Return the network interface with this IPv4 address, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])  # struct ifreq
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, request)
            except OSError:
                continue  # the interface has no address, or this is not Linux
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
