"""The end of an NCCL communicator, which NCCL frees: a second abort would use freed memory."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from marl_ray.weights import nccl_transfer
from marl_ray.weights.nccl_transfer import NcclGroup, TransferAbortedError


class Store:
    """The store of a single process, which is complete at once."""

    def clone(self) -> Store:
        return self

    def add(self, key: str, number: int) -> int:
        return 1

    def check(self, keys: list[str]) -> bool:
        return False

    def set(self, key: str, value: str) -> None:
        pass

    def wait(self, keys: list[str]) -> None:
        pass


class Communicator:
    """A communicator whose end takes until `may_end`."""

    def __init__(self) -> None:
        self.ends, self.is_ending, self.may_end = 0, threading.Event(), threading.Event()

    def destroy(self) -> None:
        self.ends += 1
        self.is_ending.set()
        assert self.may_end.wait(60)


@pytest.fixture
def communicator(monkeypatch: pytest.MonkeyPatch) -> Communicator:
    communicator = Communicator()
    monkeypatch.setattr(nccl_transfer, "make_communicator", lambda group: communicator)
    monkeypatch.setattr(nccl_transfer, "StatelessProcessGroup", lambda *arguments: None)
    return communicator


def test_threads_that_abort_at_once_end_the_communicator_once(communicator: Communicator) -> None:
    """Abort as in a receiver: its engine leaves the session while another thread sees that the sender has left."""
    group = NcclGroup(Store())
    group.join(0, 1)
    threads = [threading.Thread(target=end) for end in (group.abort, group.destroy, group.abort_all)]
    for thread in threads:
        thread.start()
    assert communicator.is_ending.wait(60)
    with pytest.raises(TransferAbortedError):
        group.broadcast(torch.zeros(1), 0)
    assert all(thread.is_alive() for thread in threads), "no thread continues before the communicator has ended"
    communicator.may_end.set()
    for thread in threads:
        thread.join(60)
    assert communicator.ends == 1


def test_a_communicator_that_is_made_after_an_abort_is_ended_too(
    communicator: Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = NcclGroup(Store())

    def make(_: Any) -> Communicator:
        group.abort()  # a loss is reported while NCCL waits for the others
        return communicator

    monkeypatch.setattr(nccl_transfer, "make_communicator", make)
    communicator.may_end.set()
    group.join(0, 1)
    with pytest.raises(TransferAbortedError):
        group.broadcast(torch.zeros(1), 0)
    group.abort()
    assert communicator.ends == 1
