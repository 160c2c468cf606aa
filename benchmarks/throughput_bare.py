"""The bare sides of `throughput.py`: the work of marl_ray's engines and learners without the loop.

Each kind (vLLM, learner) has one process per agent, without Ray and without a driver. Step n repeats the work of
marl_ray's step n: the engines sample the same groups from the same prompts with the same seeds, and the learners learn
the batches in the run's log. All agents start a step together, and the slowest agent determines its duration.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.throughput_comlrl import Block, Workload

Work = Callable[[int], Callable[[], int]]
"""Prepares a step and returns the function that runs the step and returns its number of tokens."""


def vllm_work(workload: Workload, agent: int, folder: Path) -> Work:
    """Return the work of a generator's engine in a minimal loop. Its weights are never updated."""
    from benchmarks.throughput_marl_ray import make_config, requests_of
    from marl_ray.actors.engine import sampling_parameters
    from marl_ray.actors.engine_arguments import EngineSpec, engine_arguments
    from marl_ray.actors.engine_environment import engine_environment

    config = make_config(workload, folder)
    settings = config.agents[agent]
    os.environ.update(engine_environment(settings.generator.cpus, on_gpu=False, local_model=True, verbose=False))
    spec = EngineSpec(
        model=workload.model,
        dtype="float32",
        max_length=config.model.max_length,
        trust_remote_code=False,
        on_gpu=False,
        tensor_parallel=1,
        gpu_memory_utilization=settings.generator.gpu_memory_utilization,
        kv_cache_mb=settings.generator.kv_cache_mb,
        max_num_seqs=settings.generator.max_num_seqs,
        transport="store",
    )
    from transformers import AutoTokenizer
    from vllm import EngineArgs, LLMEngine, RequestOutput

    eos = AutoTokenizer.from_pretrained(workload.model).eos_token_id
    engine = LLMEngine.from_engine_args(EngineArgs(**engine_arguments(spec)))

    def ready(step: int) -> Callable[[], int]:
        requests = requests_of(folder, step, agent)

        def generate() -> int:
            for number, (prompt_ids, sampling) in enumerate(requests):
                prompt: Any = {"prompt_token_ids": prompt_ids, "cache_salt": str(step)}
                engine.add_request(str(number), prompt, sampling_parameters(sampling, [eos]))
            tokens = 0
            while engine.has_unfinished_requests():
                for group in engine.step():
                    assert isinstance(group, RequestOutput)  # the only kind of request
                    tokens += sum(len(completion.token_ids) for completion in group.outputs)
            return tokens

        return generate

    return ready


def learner_work(workload: Workload, agent: int, folder: Path) -> Work:
    """Return the work of an agent's learner, which receives its complete batch at once."""
    from benchmarks.throughput_marl_ray import make_config, run_folder
    from marl_ray.learning.arguments import learner_arguments

    config = make_config(workload, folder)
    arguments = learner_arguments(config, config.policy_of(agent), on_gpu=False, total_steps=workload.max_steps)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    from marl_ray.learning.learner import Learner

    learner, log = Learner(*arguments), run_folder(folder).log

    def ready(step: int) -> Callable[[], int]:
        batch = log.batch(step, agent)
        groups = [group for mini_batch in batch.mini_batches for group in mini_batch.groups]

        def learn() -> int:
            learner.update(batch)
            return sum(len(completion.token_ids) for group in groups for completion in group.completions)

        return learn

    return ready


KINDS = {"vllm": vllm_work, "learner": learner_work}


class BareSide:
    """The processes of one kind, with the interface of `Side`; its blocks have no joint samples."""

    def __init__(self, name: str, workload: Workload, folder: Path) -> None:
        self.name = name
        self.threads = 1
        self._steps = 0
        started = time.monotonic()
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes = []
        for agent in range(workload.agents):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, name, workload, agent, folder), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)
        self._receive()
        self.start_s = time.monotonic() - started

    def run(self, steps: int) -> Block:
        """Run the next steps, which marl_ray must have finished, and return their measurements."""
        block = Block(steps=steps)
        for step in range(self._steps, self._steps + steps):
            self._send(step)
            self._receive()  # all processes have loaded their inputs
            started = time.monotonic()
            self._send(None)
            block.tokens += sum(self._receive())
            block.seconds += time.monotonic() - started
        self._steps += steps
        return block

    def close(self) -> None:
        """End the processes."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()

    def _send(self, message: int | None) -> None:
        for connection in self._connections:
            connection.send(message)

    def _receive(self) -> list[int]:
        return [connection.recv() for connection in self._connections]


def _serve(connection: Connection, name: str, workload: Workload, agent: int, folder: Path) -> None:
    """Prepare and run one step per pair of messages, until the connection is closed."""
    ready = KINDS[name](workload, agent, folder)
    connection.send(0)
    try:
        while True:
            work = ready(connection.recv())
            connection.send(0)
            connection.recv()
            connection.send(work())
    except EOFError:
        pass
