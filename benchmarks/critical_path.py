"""Seconds of the critical path: two agents that write side by side, and one agent that writes as many tokens in a row.

    python -m benchmarks.critical_path [--repeats 5] [--batches 1,8,64] [--out FILE] [--only-table]

The agents are SmolLM2-135M readers of the environment tags, with the prompts of the study tags-clock: five words of
each of two agents in 14 tokens, or ten words of one agent in 28. A batch is that many texts at the same time. Every
answer has its full length, and no prompt is in a cache.

| way | engines on CPUs | engines on GPUs |
|---|---|---|
| pair | two, one core each | two, on GPUs of their own if there are two |
| pair, one engine | one with one core, which batches both agents | one |
| one agent | one with one core | one |
| one agent, both cores | one with two cores | none |

Each engine is a process, pinned to its cores. The engines print to a log file, which an error names. All ways take
turns within each repeat, in random order. Adds a line per way and batch to docs/results/tags/critical_path.jsonl, with
all seconds, the machine and its load, and prints a table of medians and quartiles. On two idle cores of a CPU five
repeats take about eight minutes, most of them for batch 64. Other processes on the cores spoil the seconds, most of all
of the engine with two threads, which wait for each other: use rows of an idle machine (load below 1).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.learning.measures import read_lines
from benchmarks.markdown import markdown
from marl_ray.core.episode import SamplingSpec
from marl_ray.data.loading import load_tasks
from marl_ray.models.smollm2 import smollm2
from marl_ray.plugins.tags.environment import Tagging

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "tags" / "critical_path.jsonl"
TOKENS = 14
"""Tokens of an answer of the pair."""
PAIR = "pair"
START_S = 600
ANSWER_S = 900
"""Deadlines of an engine."""


@dataclass(frozen=True)
class Job:
    """The work of one engine in a way: the numbers of the agents of a pair whose prompts it reads (none: the prompts of
    one agent), and the tokens of an answer."""

    engine: int
    agents: tuple[int, ...]
    tokens: int = TOKENS


WAYS = {
    PAIR: (Job(0, (0,)), Job(1, (1,))),
    "pair, one engine": (Job(0, (0, 1)),),
    "one agent": (Job(0, (), 2 * TOKENS),),
    "one agent, both cores": (Job(2, (), 2 * TOKENS),),
}


def serve(connection: Connection, cores: Sequence[int], device: int | None, log: Path) -> None:
    """Start an engine on these cores, or on a GPU, and answer requests (prompts, tokens) until the connection is
    closed. All output goes to `log`."""
    with log.open("a", encoding="utf-8") as file:
        for descriptor in (1, 2):  # of this process, since libraries in C++ print too
            os.dup2(file.fileno(), descriptor)
    from marl_ray.actors.engine_environment import engine_environment

    on_gpu = device is not None
    if on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
    else:
        os.sched_setaffinity(0, cores)  # threads inherit it
    os.environ.update(engine_environment(len(cores), on_gpu=on_gpu, local_model=True, verbose=False))
    from vllm import EngineArgs, LLMEngine, RequestOutput

    from marl_ray.actors.engine import sampling_parameters
    from marl_ray.actors.engine_arguments import EngineSpec, engine_arguments

    spec = EngineSpec(
        model=str(smollm2()),
        dtype="bfloat16" if on_gpu else "float32",
        max_length=512,
        trust_remote_code=False,
        on_gpu=on_gpu,
        tensor_parallel=1,
        gpu_memory_utilization=0.3,
        kv_cache_mb=1024,
        max_num_seqs=128,
        transport="store",
    )
    engine = LLMEngine.from_engine_args(EngineArgs(**engine_arguments(spec)))
    tokenizer = engine.get_tokenizer()
    connection.send(True)
    count = 0
    while True:
        try:
            prompts, tokens = connection.recv()
        except EOFError:
            return
        sampling = SamplingSpec(1, tokens, temperature=0.8, top_p=1.0, top_k=None, seed=count, min_new_tokens=tokens)
        for prompt in prompts:
            count += 1
            # A salt of its own keeps a prompt out of the cache of earlier ones.
            request: Any = {"prompt_token_ids": tokenizer.encode(prompt), "cache_salt": str(count)}
            engine.add_request(str(count), request, sampling_parameters(sampling, []))
        lengths = []
        while engine.has_unfinished_requests():
            for output in engine.step():
                assert isinstance(output, RequestOutput)  # the only kind of request
                lengths.append(len(output.outputs[0].token_ids))
        connection.send(lengths)


class Engines:
    """Processes with engines. Leaving the context ends them, and removes their log unless there was an error."""

    def __init__(self, cores: Sequence[Sequence[int]], devices: Sequence[int | None]) -> None:
        context = multiprocessing.get_context("spawn")
        descriptor, name = tempfile.mkstemp(prefix="critical_path_", suffix=".log")
        os.close(descriptor)
        self.log = Path(name)
        self._connections: list[Connection] = []
        self._processes = []
        for own_cores, device in zip(cores, devices, strict=True):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, own_cores, device, self.log), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)
            self._receive(ours, START_S)  # one after another: two engines would measure the same free GPU memory

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
        if kind is None:
            self.log.unlink()

    def seconds(self, jobs: Sequence[Job], batch: int) -> float:
        """Return the time until the last answer of a way. Raises ValueError if an answer has another length."""
        requests = [(_prompts(job, batch), job.tokens) for job in jobs]
        started = time.monotonic()
        for job, request in zip(jobs, requests, strict=True):
            self._connections[job.engine].send(request)
        answers = [self._receive(self._connections[job.engine], ANSWER_S) for job in jobs]
        seconds = time.monotonic() - started
        for job, lengths in zip(jobs, answers, strict=True):
            if set(lengths) != {job.tokens}:
                raise ValueError(f"answers of {job.tokens} tokens were asked for, got {sorted(set(lengths))}")
        return seconds

    def _receive(self, connection: Connection, deadline_s: float) -> Any:
        if not connection.poll(deadline_s):
            raise TimeoutError(f"an engine took longer than {deadline_s} s, see {self.log}")
        try:
            return connection.recv()
        except EOFError:
            raise RuntimeError(f"an engine has ended, see {self.log}") from None


def _prompts(job: Job, batch: int) -> list[str]:
    """Return the prompts of an engine for `batch` texts."""
    prompts = []
    environment = Tagging(2, 5) if job.agents else Tagging(1, 10)
    for task in load_tasks("bundled:tags", f"train[:{batch}]"):
        of_agents = environment.first_prompts(task)
        for agent in job.agents or (0,):
            prompts.append(of_agents[agent])
    return prompts


def machine(gpus: int) -> str:
    """Return the names of the machine's processors."""
    if gpus:
        import torch

        return f"{gpus} x {torch.cuda.get_device_name(0)}"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return f"{os.cpu_count()} cores, {line.partition(':')[2].strip()}"
    return f"{os.cpu_count()} cores, {platform.machine()}"


def measure(batches: Sequence[int], repeats: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return a row per way and batch with the seconds of all repeats."""
    import torch

    gpus = torch.cuda.device_count()
    names = list(WAYS)
    if gpus:
        names.remove("one agent, both cores")
        devices: list[int | None] = [0, min(1, gpus - 1)]
        cores: list[list[int]] = [[], []]
    else:
        first, second, *_ = sorted(os.sched_getaffinity(0))
        cores = [[first], [second], [first, second]]
        devices = [None] * len(cores)
    load = os.getloadavg()[0]
    found: dict[tuple[str, int], list[float]] = {(name, batch): [] for name in names for batch in batches}
    order = random.Random(seed)
    with Engines(cores, devices) as engines:
        for name in names:
            engines.seconds(WAYS[name], 2)  # the first step of an engine prepares kernels
        for repeat in range(repeats):
            cells = list(found)
            order.shuffle(cells)
            for name, batch in cells:
                found[name, batch].append(round(engines.seconds(WAYS[name], batch), 4))
            print(f"repeat {repeat + 1} of {repeats}", flush=True)
    rows = []
    for (name, batch), seconds in found.items():
        row: dict[str, Any] = {"machine": machine(gpus), "load": round(load, 1), "way": name, "batch": batch}
        rows.append({**row, "seconds": seconds})
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table per machine: medians with quartiles, and medians relative to the pair's."""
    parts = []
    for name, load in {row["machine"]: row["load"] for row in rows}.items():
        of_machine = {(row["way"], row["batch"]): row["seconds"] for row in rows if row["machine"] == name}
        batches = sorted({batch for _, batch in of_machine})
        lines = [[f"{name}, load {load} before", *(f"batch {batch}" for batch in batches)]]
        for way in WAYS:
            cells = []
            for batch in batches:
                seconds = of_machine.get((way, batch))
                if not seconds:
                    cells.append("")
                    continue
                low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
                ratio = median(seconds) / median(of_machine[PAIR, batch])
                cells.append(f"{median(seconds):.2f} s ({low:.2f} to {high:.2f}), {ratio:.2f}")
            if any(cells):
                lines.append([way, *cells])
        parts.append(markdown(lines))
    return "\n\n".join(parts)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", default="1,8,64", help="texts at the same time")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="file of the rows; later rows of a cell replace others"
    )
    parser.add_argument("--only-table", action="store_true", help="print the table without measuring")
    options = parser.parse_args(argv)
    if not options.only_table:
        rows = measure([int(batch) for batch in options.batches.split(",")], options.repeats)
        with options.out.open("a", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
    print(table(read_lines(options.out)))


if __name__ == "__main__":
    main()
