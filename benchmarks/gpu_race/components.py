"""Learner and engine alone, and a profile of the learner."""

from __future__ import annotations

import os
import random
import statistics
import time
from typing import Any

from benchmarks.gpu_race.ceilings import matrix_product_flops
from benchmarks.gpu_race.race import TIMED, Race, peak_memory
from benchmarks.gpu_race.training import config_tree


def learner(race: Race) -> None:
    """Measure the update of a learner without engines: its tokens/s and its share of a matrix product's FLOP/s."""
    import torch

    product_flops = matrix_product_flops(race)
    for name in race.models[:2]:  # AdamW of 3B takes 49 GB
        trained = _Learner(race, name)
        trained.update()
        if not race.on_cpu:
            torch.cuda.reset_peak_memory_stats()
        seconds = statistics.median(trained.update() for _ in range(TIMED))
        flops = 6 * trained.parameters * race.work.trained_tokens / seconds
        race.add(
            "learner",
            name,
            s_per_update=seconds,
            tokens_per_s=race.work.trained_tokens / seconds,
            share_of_matrix_product=flops / product_flops,
            **peak_memory(race),
        )
        del trained
        if not race.on_cpu:
            torch.cuda.empty_cache()


class _Learner:
    """A learner with the batches of a race's work."""

    def __init__(self, race: Race, model: str) -> None:
        from marl_ray.config import from_tree
        from marl_ray.learning.arguments import learner_arguments
        from marl_ray.learning.learner import Learner

        config = from_tree(config_tree(race, model, "grpo", {}), "grpo")
        self._race = race
        self._learner = Learner(*learner_arguments(config, config.policies[0], 100))
        self.parameters = sum(parameter.numel() for parameter in self._learner.policy.parameters())

    def update(self) -> float:
        """Learn the next batch, and return the seconds."""
        from marl_ray.core.batch import Batch, Group, MiniBatch
        from marl_ray.core.episode import Completion, sibling_calls

        work, step = self._race.work, self._learner.step
        draw = random.Random(step)
        groups = []
        for _ in range(work.tasks):
            prompt = _random_tokens(draw, work.prompt)
            completions = []
            for _ in range(work.generations):
                ids = _random_tokens(draw, work.completion)
                completions.append(Completion(ids, "", (-1.0,) * len(ids), "length", ()))
            weights = tuple((-1.0) ** number for number in range(work.generations))
            groups.append(Group(0, sibling_calls(prompt, completions), weights, weights))
        batch = Batch(step, (MiniBatch(tuple(groups), work.tasks * work.generations),))
        begun = time.perf_counter()
        self._learner.update(batch)  # reads the loss, and so waits for the device
        return time.perf_counter() - begun


def _random_tokens(draw: random.Random, number: int) -> tuple[int, ...]:
    """Return token ids that every model has, without the first ones, which may end an answer."""
    return tuple(draw.randrange(10, 400) for _ in range(number))


def engine(race: Race) -> None:
    """Measure vLLM with the settings of this system's engines: start, and tokens/s of a step of one agent."""
    from marl_ray.actors.engine_environment import engine_environment

    os.environ.update(engine_environment(1, not race.on_cpu, local_model=True, verbose=False))
    from vllm import EngineArgs, LLMEngine

    from marl_ray.actors.engine import sampling_parameters
    from marl_ray.actors.engine_arguments import EngineSpec, engine_arguments
    from marl_ray.core.episode import SamplingSpec

    name, work = race.smallest, race.work
    spec = EngineSpec(
        model=str(race.model(name)),
        dtype=race.dtype,
        max_length=512,
        trust_remote_code=False,
        on_gpu=not race.on_cpu,
        tensor_parallel=1,
        gpu_memory_utilization=0.4,
        kv_cache_mb=64,
        max_num_seqs=work.tasks * work.generations,
        transport="store",
    )
    begun = time.perf_counter()
    running = LLMEngine.from_engine_args(EngineArgs(**engine_arguments(spec)))
    started = time.perf_counter() - begun
    draw = random.Random(0)
    durations = []
    for number in range(TIMED + 1):
        begun = time.perf_counter()
        for task in range(work.tasks):
            sampling = SamplingSpec(
                work.generations, work.completion, 1.0, 1.0, None, seed=task, min_new_tokens=work.completion
            )
            prompt: Any = {"prompt_token_ids": list(_random_tokens(draw, work.prompt))}
            running.add_request(f"{number}.{task}", prompt, sampling_parameters(sampling, []))
        while running.has_unfinished_requests():
            running.step()
        durations.append(time.perf_counter() - begun)
    seconds = statistics.median(durations[1:])
    race.add("engine", name, start_s=started, s_per_step=seconds, tokens_per_s=work.sampled_tokens / seconds)


def profile(race: Race) -> None:
    """Add the ten operations of an update of the smallest model that take most of the device's time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    trained = _Learner(race, race.smallest)
    trained.update()
    activities = [ProfilerActivity.CPU] if race.on_cpu else [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profiled(activities=activities) as found:
        seconds = trained.update()
    averages = found.key_averages()

    def own_us(entry: Any) -> float:
        return float(entry.self_cpu_time_total if race.on_cpu else entry.self_device_time_total)

    slowest = sorted(averages, key=own_us, reverse=True)[:10]
    race.add("profile", race.smallest, s_under_the_profiler=seconds, operations=sum(e.count for e in averages))
    for entry in slowest:
        race.add("profile", entry.key[:60], ms=own_us(entry) / 1e3, calls=entry.count)
