"""Ranks as processes, for tests."""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch
import transformers  # noqa: F401  (imported once, in the fork server)

from marl_ray.learning.ranks import LOOPBACK, RankGroup, Rendezvous, join_rendezvous, open_rendezvous

T = TypeVar("T")

TIMEOUT_S = 60.0
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__, "marl_ray.learning.learner"])


def run_ranks(size: int, work: Callable[..., T], *arguments: Any, mortal: bool = False) -> list[T]:
    """Return the results of `work(ranks, *arguments)` in each of `size` processes.

    `work` is a module-level function. Processes that are `mortal` may die without a result.
    """
    store, rendezvous = open_rendezvous(LOOPBACK, size, TIMEOUT_S)
    ends = [PROCESSES.Pipe(duplex=False) for _ in range(size)]
    processes = [
        PROCESSES.Process(target=_be_rank, args=(ends[rank][1], rendezvous, rank, work, arguments), daemon=True)
        for rank in range(size)
    ]
    try:
        for process, (_, sending) in zip(processes, ends, strict=True):
            process.start()
            sending.close()
        return _collect_results([receiving for receiving, _ in ends], mortal)
    finally:
        for process in processes:
            process.kill()
            process.join(TIMEOUT_S)
        del store


def _collect_results(ends: Sequence[Connection], mortal: bool) -> list[Any]:
    results: dict[int, Any] = {}
    remaining = list(ends)
    while remaining:
        ready = wait(remaining, TIMEOUT_S)
        assert ready, f"no answer from ranks {[ends.index(end) for end in remaining]}"
        for end in ready:
            assert isinstance(end, Connection)
            remaining.remove(end)
            try:
                good, answer = pickle.loads(end.recv_bytes())
            except EOFError:
                assert mortal, f"rank {ends.index(end)} died"
                continue
            assert good, answer
            results[ends.index(end)] = answer
    return [results[rank] for rank in sorted(results)]


def _be_rank(answers: Connection, rendezvous: Rendezvous, rank: int, work: Callable[..., Any], arguments: Any) -> None:
    torch.set_num_threads(1)
    try:
        ranks: RankGroup = join_rendezvous(rendezvous, rank, LOOPBACK)
        answer = (True, work(ranks, *arguments))
    except BaseException:
        answer = (False, traceback.format_exc())
    answers.send_bytes(pickle.dumps(answer))  # tensors by value, because the process ends here
