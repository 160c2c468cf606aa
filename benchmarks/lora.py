"""Memory, time and checkpoint of a learner: all weights by three optimizers, an adapter, and two adapters on one model.

    python -m benchmarks.lora                                        # SmolLM2-135M, some minutes
    python -m benchmarks.lora --model bundled:toy-base --sides lora shared

Every side is a process of its own, measured beside one in which AdamW learns all weights; the two take turns, an update
each on the same tokens, so that what else happens on the machine meets both. Memory is the process's resident set:
`before` without a model, `loaded` with it, `peak` over all (VmHWM). No engine, no Ray, no sandbox.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

FULL = "adamw"
SIDES: Mapping[str, Mapping[str, Any]] = {
    FULL: {},
    "adamw_8bit": {"magrpo.optimizer": "adamw_8bit"},
    "adafactor": {"magrpo.optimizer": "adafactor"},
    "lora": {"lora.rank": 16},
    "shared": {"lora.rank": 16, "lora.share_base": True},
}
"""By name: what is set. `shared` are the learners of two agents, in turns; all others are one."""
MIB = 2**20


@dataclass(frozen=True)
class Work:
    """What each side does: an update from one group of `group` answers of `tokens` tokens to a prompt as long."""

    model: str
    group: int
    tokens: int
    threads: int


@dataclass(frozen=True)
class Told:
    """Of one side, in MiB: resident memory, the optimizer's numbers, a checkpoint; seconds of each update."""

    before: float
    loaded: float
    peak: float
    optimizer: float
    checkpoint: float
    seconds: list[float]


def resident(which: str) -> float:
    """This process's memory, VmRSS or VmHWM (its peak), in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(which)).split()[1]) / 1024


def serve(side: str, work: Work, pipe: Connection) -> None:
    """In the side's process: learn once for every True, then tell."""
    import torch

    from marl_ray.config import from_tree
    from marl_ray.core.batch import Batch, Group, MiniBatch
    from marl_ray.core.episode import Completion
    from marl_ray.learning.arguments import local_learner_arguments
    from marl_ray.learning.learner import Learner

    tree = {"model": {"name": work.model}, "dataset": {"name": "bundled:toy"}, "magrpo": {"num_agents": 2}}
    config = from_tree(tree | {"resources": {"learner": {"cpus": work.threads}}}, "magrpo", SIDES[side])
    before = resident("VmRSS")
    first = Learner(*local_learner_arguments(config, config.policies[0], 100))
    learners = [first]
    if config.lora.share_base:
        learners.append(
            Learner(*local_learner_arguments(config, config.policies[1], 100), name="agent_1", beside=first)
        )
    loaded = resident("VmRSS")

    draw, vocabulary = random.Random(0), first.policy.config.vocab_size

    def ids() -> tuple[int, ...]:
        return tuple(draw.randrange(vocabulary) for _ in range(work.tokens))

    def batch(step: int) -> Batch:
        spans = ((0, work.tokens),)
        answers = tuple(Completion(ids(), "", (-9.0,) * work.tokens, "length", spans) for _ in range(work.group))
        weights = tuple((2 * rank + 1 - work.group) / work.group for rank in range(work.group))
        return Batch(step, (MiniBatch((Group(0, ids(), answers, weights, weights),), 1),))

    seconds: list[float] = []
    pipe.send(None)
    while pipe.recv():
        given = batch(first.step)
        begun = time.perf_counter()
        for learner in learners:
            learner.activate()
            learner.update(given)
        seconds.append(time.perf_counter() - begun)
        pipe.send(None)
    peak = resident("VmHWM")
    numbers = [value for of in learners for state in of.optimizer.state.values() for value in state.values()]
    kept = sum(value.numel() * value.element_size() for value in numbers if isinstance(value, torch.Tensor))
    with tempfile.TemporaryDirectory() as folder:
        first.save(folder)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    pipe.send(Told(before, loaded, peak, kept / MIB, size / MIB, seconds))


@contextmanager
def started(side: str, work: Work) -> Iterator[Connection]:
    """The side's process, with its model loaded."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(side, work, theirs))
    process.start()
    theirs.close()  # so that reading ends if the process does
    try:
        ours.recv()
        yield ours
    finally:
        ours.close()
        process.join(60)
        process.kill()


def beside_full(side: str, work: Work, turns: int) -> dict[str, Told]:
    """The side and the one that learns all weights, after a first turn that is not counted."""
    told: dict[str, Told] = {}
    with started(FULL, work) as full, started(side, work) as other:
        both = {FULL: full, side: other}
        for _ in range(turns + 1):
            for pipe in both.values():
                pipe.send(True)
                pipe.recv()
        for name, pipe in both.items():
            pipe.send(False)
            told[name] = pipe.recv()
    return told


def table(rows: Sequence[tuple[str, Told, float]]) -> Iterator[str]:
    """A line a side; `float` is its seconds over those of AdamW on all weights, beside it."""
    yield f"{'MiB':11} {'before':>7} {'loaded':>7} {'peak':>7}  {'optimizer':>9} {'checkpoint':>10}   s/update  x adamw"
    for name, told, ratio in rows:
        memory = (
            f"{told.before:7.0f} {told.loaded:7.0f} {told.peak:7.0f}  {told.optimizer:9.1f} {told.checkpoint:10.1f}"
        )
        yield f"{name:11} {memory}   {statistics.median(told.seconds[1:]):8.2f}  {ratio:7.2f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    others = [name for name in SIDES if name != FULL]
    parser.add_argument("--model", default="bundled:smollm2-135m", help="default bundled:smollm2-135m")
    parser.add_argument("--sides", nargs="+", choices=others, default=others, help="beside adamw (default: all)")
    parser.add_argument("--group", type=int, default=4, help="answers in an update (default 4)")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer, and of the prompt (default 128)")
    parser.add_argument("--turns", type=int, default=3, help="updates that count (default 3)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each learner (default: all cores)")
    arguments = parser.parse_args()
    work = Work(arguments.model, arguments.group, arguments.tokens, arguments.threads)
    rows: list[tuple[str, Told, float]] = []
    for side in arguments.sides:
        told = beside_full(side, work, arguments.turns)
        pairs = zip(told[side].seconds[1:], told[FULL].seconds[1:], strict=True)
        ratio = statistics.median(own / full for own, full in pairs)
        rows += [(side, told[side], ratio)] if rows else [(FULL, told[FULL], 1.0), (side, told[side], ratio)]
    print(*table(rows), sep="\n")


if __name__ == "__main__":
    main()
