"""The ranks of one policy's learner: how they meet, and what they tell each other.

Each is a process of its own, on any node. They meet at a store that rank 0 serves for one life of the group
(`Rendezvous`), and then talk to each other directly: by gloo through the host's memory, and by NCCL from GPU to GPU where
they have some. What is listened on is one address of the node, that of the machine itself where all ranks are on one.
There is no password: the network between nodes has to be the cluster's own, as for Ray.

What several ranks do together each of them has to begin, in the same order; one that is missing is waited for until
`Rendezvous.timeout_s`, and one that has died is an error at once.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
SIOCGIFADDR = 0x8915
"""Linux: the IPv4 address of a network interface (netdevice(7))."""


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Which one this process is, from 0, and how many there are."""

    rank: int = 0
    size: int = 1

    @property
    def is_single(self) -> bool:
        """Whether there are no others, and so no process group."""
        return self.size == 1

    def all_gather(self, mine: T) -> list[T]:
        """What each of them has, in their order. All of them ask."""
        if self.is_single:
            return [mine]
        found: list[T | None] = [None] * self.size
        dist.all_gather_object(found, mine)
        return found  # type: ignore[return-value]

    def broadcast(self, first: T) -> T:
        """What rank 0 has. All of them ask."""
        if self.is_single:
            return first
        found = [first if self.rank == 0 else None]
        dist.broadcast_object_list(found, 0)
        return found[0]  # type: ignore[return-value]


SINGLE_RANK = RankGroup()


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where `size` ranks find each other: `host` and `port` are rank 0's; `timeout_s` is how long one of them waits for
    another, seconds."""

    host: str
    port: int
    size: int
    timeout_s: float


def open_rendezvous(host: str, size: int, timeout_s: float) -> tuple[dist.TCPStore, Rendezvous]:
    """The store of rank 0, served at `host`, one of this machine's addresses, as long as it is kept."""
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    # Handed an open socket: by itself it would listen on every address that there is.
    store = dist.TCPStore(
        host,
        port,
        size,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        master_listen_fd=listener.detach(),
    )
    return store, Rendezvous(host, port, size, timeout_s)


def join_rendezvous(meeting: Rendezvous, rank: int, address: str, store: dist.TCPStore | None = None) -> RankGroup:
    """Become one of the ranks; returns when all are there. `address` is this node's; rank 0 gives its store.

    Raises what `is_peer_failure` knows where one does not come.
    """
    timeout, gpu = timedelta(seconds=meeting.timeout_s), torch.cuda.is_available()
    interface = interface_of(LOOPBACK if meeting.host == LOOPBACK else address)
    if interface is not None:  # gloo would ask for the host's name, which often stands for another address
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if store is None:
        store = dist.TCPStore(meeting.host, meeting.port, meeting.size, is_master=False, timeout=timeout)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpu else "gloo",
        store=store,
        rank=rank,
        world_size=meeting.size,
        timeout=timeout,
        device_id=torch.device("cuda", torch.cuda.current_device()) if gpu else None,
    )
    return RankGroup(rank, meeting.size)


def is_peer_failure(error: BaseException) -> bool:
    """Whether an error says that another rank is gone or late, so that this one can do no more. gloo raises plain
    RuntimeErrors, which name the file of its own that they come from; checkpoints wrap what each rank raised."""
    from torch.distributed.checkpoint.api import CheckpointException

    if isinstance(error, CheckpointException):
        return any(is_peer_failure(inner) for inner, _ in error.failures.values())
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error).lower())


def interface_of(address: str) -> str | None:
    """The name of the network interface with this IPv4 address; None where it is not found."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))[20:24]
            except OSError:
                continue  # it has none, or this is no Linux
            if socket.inet_ntoa(found) == address:
                return name
    return None
