"""RankGroup as processes of their own, for tests: what each of them makes of one function."""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch
import transformers  # noqa: F401  (once, in the process that ranks are forked from)

from marl_ray.learning.ranks import LOOPBACK, RankGroup, Rendezvous, join_rendezvous, open_rendezvous

T = TypeVar("T")

TIMEOUT_S = 60.0
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__, "marl_ray.learning.learner"])


def run_ranks(size: int, work: Callable[..., T], *arguments: Any, mortal: bool = False) -> list[T]:
    """What `work(ranks, *arguments)` gives in each of `size` processes; it is a function of a module. Those that are
    `mortal` may die without an answer."""
    store, meeting = open_rendezvous(LOOPBACK, size, TIMEOUT_S)
    ends = [PROCESSES.Pipe(duplex=False) for _ in range(size)]
    processes = [
        PROCESSES.Process(target=_be_rank, args=(ends[rank][1], meeting, rank, work, arguments), daemon=True)
        for rank in range(size)
    ]
    try:
        for process, (_, sending) in zip(processes, ends, strict=True):
            process.start()
            sending.close()
        return _received([receiving for receiving, _ in ends], mortal)
    finally:
        for process in processes:
            process.kill()
            process.join(TIMEOUT_S)
        del store


def _received(ends: Sequence[Connection], mortal: bool) -> list[Any]:
    found: dict[int, Any] = {}
    left = list(ends)
    while left:
        ready = wait(left, TIMEOUT_S)
        assert ready, f"no answer from ranks {[ends.index(end) for end in left]}"
        for end in ready:
            assert isinstance(end, Connection)
            left.remove(end)
            try:
                good, answer = pickle.loads(end.recv_bytes())
            except EOFError:
                assert mortal, f"rank {ends.index(end)} died"
                continue
            assert good, answer
            found[ends.index(end)] = answer
    return [found[rank] for rank in sorted(found)]


def _be_rank(answers: Connection, meeting: Rendezvous, rank: int, work: Callable[..., Any], arguments: Any) -> None:
    torch.set_num_threads(1)
    try:
        ranks: RankGroup = join_rendezvous(meeting, rank, LOOPBACK)
        answer = (True, work(ranks, *arguments))
    except BaseException:
        answer = (False, traceback.format_exc())
    answers.send_bytes(pickle.dumps(answer))  # tensors by value: the process ends with that
