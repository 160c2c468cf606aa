"""Memory, time and checkpoint of a learner: all weights by three optimizers, an adapter, and two adapters on one model.

    python -m benchmarks.lora                                        # SmolLM2-135M, some minutes
    python -m benchmarks.lora --model bundled:toy-base --sides lora shared

Each side runs in its own process, together with a process in which AdamW learns all weights. The two processes
alternate updates on the same tokens, so that other load on the machine affects both. Memory is the resident set of the
process: `before` loading the model, `loaded` with the model, and its `peak` (VmHWM).
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
"""Settings of each side. `shared` has two learners, which take turns; the other sides have one learner."""
MIB = 2**20


@dataclass(frozen=True)
class Work:
    """The workload of an update: one group of `group` completions; prompt and completions have `tokens` tokens each."""

    model: str
    group: int
    tokens: int
    threads: int


@dataclass(frozen=True)
class Measurement:
    """Resident memory, optimizer state and checkpoint of one side in MiB, and the seconds of each update."""

    before: float
    loaded: float
    peak: float
    optimizer: float
    checkpoint: float
    seconds: list[float]


def resident(which: str) -> float:
    """Return the memory of this process in MiB: VmRSS (now) or VmHWM (peak)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(which)).split()[1]) / 1024


def serve(side: str, work: Work, pipe: Connection) -> None:
    """Update once per received True; after False, send the `Measurement`."""
    import torch

    from marl_ray.config import from_tree
    from marl_ray.core.batch import Batch, Group, MiniBatch
    from marl_ray.core.episode import Completion, sibling_calls
    from marl_ray.learning.arguments import learner_arguments
    from marl_ray.learning.learner import Learner

    tree = {"model": {"name": work.model}, "dataset": {"name": "bundled:toy"}, "magrpo": {"num_agents": 2}}
    config = from_tree(tree | {"resources": {"learner": {"cpus": work.threads}}}, "magrpo", SIDES[side])
    before = resident("VmRSS")
    first = Learner(*learner_arguments(config, config.policies[0], 100))
    learners = [first]
    if config.lora.share_base:
        learners.append(Learner(*learner_arguments(config, config.policies[1], 100), name="agent_1", beside=first))
    loaded = resident("VmRSS")

    draw, vocabulary = random.Random(0), first.policy.config.vocab_size

    def ids() -> tuple[int, ...]:
        return tuple(draw.randrange(vocabulary) for _ in range(work.tokens))

    def batch(step: int) -> Batch:
        spans = ((0, work.tokens),)
        answers = tuple(Completion(ids(), "", (-9.0,) * work.tokens, "length", spans) for _ in range(work.group))
        weights = tuple((2 * rank + 1 - work.group) / work.group for rank in range(work.group))
        return Batch(step, (MiniBatch((Group(0, sibling_calls(ids(), answers), weights, weights),), 1),))

    seconds: list[float] = []
    pipe.send(None)
    while pipe.recv():
        next_batch = batch(first.step)
        started = time.perf_counter()
        for learner in learners:
            learner.activate()
            learner.update(next_batch)
        seconds.append(time.perf_counter() - started)
        pipe.send(None)
    peak = resident("VmHWM")
    numbers = [value for each in learners for state in each.optimizer.state.values() for value in state.values()]
    optimizer_bytes = sum(value.numel() * value.element_size() for value in numbers if isinstance(value, torch.Tensor))
    with tempfile.TemporaryDirectory() as folder:
        first.save(folder)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    pipe.send(Measurement(before, loaded, peak, optimizer_bytes / MIB, size / MIB, seconds))


@contextmanager
def side_process(side: str, work: Work) -> Iterator[Connection]:
    """Start the process of a side and wait until its model is loaded."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(side, work, theirs))
    process.start()
    theirs.close()  # so that recv() fails if the process ends
    try:
        ours.recv()
        yield ours
    finally:
        ours.close()
        process.join(60)
        process.kill()


def measure_pair(side: str, work: Work, turns: int) -> dict[str, Measurement]:
    """Return the measurements of the side and of AdamW on all weights. The first turn is a warm-up."""
    measurements: dict[str, Measurement] = {}
    with side_process(FULL, work) as full, side_process(side, work) as other:
        both = {FULL: full, side: other}
        for _ in range(turns + 1):
            for pipe in both.values():
                pipe.send(True)
                pipe.recv()
        for name, pipe in both.items():
            pipe.send(False)
            measurements[name] = pipe.recv()
    return measurements


def table(rows: Sequence[tuple[str, Measurement, float]]) -> Iterator[str]:
    """Yield one line per side. The number in `rows` is the ratio to the seconds of AdamW on all weights."""
    yield f"{'MiB':11} {'before':>7} {'loaded':>7} {'peak':>7}  {'optimizer':>9} {'checkpoint':>10}   s/update  x adamw"
    for name, row, ratio in rows:
        memory = f"{row.before:7.0f} {row.loaded:7.0f} {row.peak:7.0f}  {row.optimizer:9.1f} {row.checkpoint:10.1f}"
        yield f"{name:11} {memory}   {statistics.median(row.seconds[1:]):8.2f}  {ratio:7.2f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    others = [name for name in SIDES if name != FULL]
    parser.add_argument("--model", default="bundled:smollm2-135m", help="default bundled:smollm2-135m")
    parser.add_argument(
        "--sides", nargs="+", choices=others, default=others, help="sides to compare with adamw (default: all)"
    )
    parser.add_argument("--group", type=int, default=4, help="completions per update (default 4)")
    parser.add_argument(
        "--tokens", type=int, default=128, help="tokens of each completion and of the prompt (default 128)"
    )
    parser.add_argument("--turns", type=int, default=3, help="measured updates (default 3)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads per learner (default: all cores)")
    arguments = parser.parse_args()
    work = Work(arguments.model, arguments.group, arguments.tokens, arguments.threads)
    rows: list[tuple[str, Measurement, float]] = []
    for side in arguments.sides:
        pair = measure_pair(side, work, arguments.turns)
        pairs = zip(pair[side].seconds[1:], pair[FULL].seconds[1:], strict=True)
        ratio = statistics.median(own / full for own, full in pairs)
        rows += [(side, pair[side], ratio)] if rows else [(FULL, pair[FULL], 1.0), (side, pair[side], ratio)]
    print(*table(rows), sep="\n")


if __name__ == "__main__":
    main()
