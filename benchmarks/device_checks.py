"""The checks of `python -m benchmarks.gpu_check`: real actors on the devices of this machine, one process per check.

A check returns measurements by name and raises an exception on failure. Most checks run the same sequence on different
actors: start an engine and a learner, synchronise weights, sample tokens and compare their log-probabilities, take an
optimizer step, and synchronise and compare again.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.run_actors import EvaluationActors, RunActors, start_actors
from marl_ray.config import Config, from_tree
from marl_ray.config.keys import settings
from marl_ray.core.batch import Batch, Group, GroupQueue, MiniBatch
from marl_ray.core.episode import Generation, SamplingSpec, Task
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.storage.run_folder import RunFolder, StoredHistory

Numbers = dict[str, float | str]

PROMPTS, TOKENS, GROUP = 8, 64, 8
GAPS = {"float32": 1e-3, "bfloat16": 0.05}
"""Maximum mean absolute difference between the log-probabilities of engine and learner, in nats per token."""
RANKS = "resources.learner.ranks"


class Skipped(Exception):
    """Raised if this machine or this version lacks the tested feature."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The test machine: its number of GPUs (0: CPU only) and the model to load."""

    gpus: int
    model: str

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.gpus else "float32"

    def config(self, **resources: Any) -> Config:
        """Return a config with one agent on the toy tasks and these resources."""
        tree = {
            "model": {
                "name": self.model,
                "max_length": 512,
                "model_kwargs": {"torch_dtype": self.dtype},
            },
            "dataset": {"name": "bundled:toy"},
            "grpo": {"num_generations": GROUP, "max_new_tokens": TOKENS, "learning_rate": 1e-4},
            "resources": {"sandbox": {"workers": 1, "cpus": 0.1}, **resources},
        }
        return from_tree(tree, "grpo")


def transfer_on_one_device(machine: Machine) -> Numbers:
    """Share one GPU between engine and learner, with weights sent by CUDA IPC; on a CPU, by Ray's object store."""
    if not machine.gpus:
        return asyncio.run(_exercise(machine.config(), GAPS[machine.dtype]))
    shares = {"generator": {"gpus": 0.5, "gpu_memory_utilization": 0.4}, "learner": {"gpus": 0.5}}
    return asyncio.run(_exercise(machine.config(**shares), GAPS[machine.dtype]))


def transfer_between_devices(machine: Machine) -> Numbers:
    """Give engine and learner one GPU each, with weights sent by NCCL."""
    _need(machine, 2)
    return asyncio.run(_exercise(machine.config(), GAPS[machine.dtype]))


def colocated(machine: Machine) -> Numbers:
    """Test `resources.colocate`: the engine sleeps during learner steps."""
    found = asyncio.run(_exercise(machine.config(colocate=True), GAPS[machine.dtype]))
    play, asleep, learn, awake = (float(found[f"{phase} MB"]) for phase in ("play", "asleep", "learn", "awake"))
    if not asleep < min(play, awake) or not asleep <= learn:
        raise RuntimeError(
            f"sleeping freed no memory: rollout {play:g} MB, asleep {asleep:g}, learning {learn:g}, awake {awake:g}"
        )
    return found


def sharded_learner(machine: Machine) -> Numbers:
    """Shard the learner over all GPUs except the engine's; on a CPU, over two processes."""
    if RANKS not in settings("grpo"):
        raise Skipped(f"this version has no {RANKS}")
    _need(machine, 3 if machine.gpus else 0)
    ranks = machine.gpus - 1 if machine.gpus else 2
    return {"ranks": ranks} | asyncio.run(_exercise(machine.config(learner={"ranks": ranks}), GAPS[machine.dtype]))


def tensor_parallel(machine: Machine) -> Numbers:
    """Run an engine on two GPUs and synchronise its weights; without a third GPU for the learner, only sample."""
    _need(machine, 2)
    config = machine.config(generator={"tensor_parallel": 2})
    if machine.gpus > 2:
        return asyncio.run(_exercise(config, GAPS[machine.dtype]))
    return asyncio.run(_sample_only(config))


def training(machine: Machine) -> Numbers:
    """Train the two agents of the quickstart for two steps, colocated on one device."""
    from marl_ray.config import load
    from marl_ray.core.errors import UserError
    from marl_ray.launch.run import train
    from marl_ray.telemetry.sinks import read_rows

    share = {"resources.generator.gpus": 0.5, "resources.generator.gpu_memory_utilization": 0.4}
    with tempfile.TemporaryDirectory() as folder:
        overrides = {
            "magrpo.max_steps": 2,
            "magrpo.rollout_buffer_size": 4,
            "dataset.eval_split": None,
            "model.model_kwargs.torch_dtype": machine.dtype,
            "resources.colocate": True,
            "output.base_dir": folder,
            "output.run_name": "check",
        }
        quickstart = Path(__file__).resolve().parent.parent / "configs" / "quickstart.yaml"
        started = time.perf_counter()
        train(load(quickstart, "magrpo", overrides | (share if machine.gpus else {})))
        seconds = time.perf_counter() - started
        rows = list(read_rows(Path(folder) / "check" / "metrics.jsonl"))
    if len(rows) != 2:
        raise UserError(f"the run has {len(rows)} steps, expected 2")
    last = rows[-1]
    gap = max(float(last[f"agent_{agent}/logprob_gap"]) for agent in (0, 1))
    return {
        "seconds": seconds,
        "step s": float(last["time/step"]),
        "gap": _below(gap, GAPS[machine.dtype]),
        **{name: float(last[f"memory/device_0/{phase}"]) for name, phase in _phases()},
    }


CHECKS: dict[str, tuple[Callable[[Machine], Numbers], str]] = {
    "one_device": (transfer_on_one_device, "engine, CUDA IPC with checksums, log-probability gap"),
    "two_devices": (transfer_between_devices, "engine, NCCL with checksums, log-probability gap"),
    "turns": (colocated, "colocated sleep and wake"),
    "ranks": (sharded_learner, "learner with several ranks"),
    "tensor_parallel": (tensor_parallel, "engine on two GPUs"),
    "training": (training, "two agents on one device, two steps"),
}
"""Each check's function and description, by name."""


async def _exercise(config: Config, bound: float) -> Numbers:
    """Start, update weights, sample, compare, learn, update weights and compare again.

    The weight sender compares checksums and raises an exception if they differ.
    """
    begun = time.perf_counter()
    team = await start_actors(config, 4)
    try:
        found: Numbers = {"start s": time.perf_counter() - begun}
        [learner], generators = team.learners, team.generators[0]
        with tempfile.TemporaryDirectory() as folder:
            await learner.connect(generators, StoredHistory(RunFolder(Path(folder)), learner.policy))
            found["transport"] = team.transport
            found |= await _update_weights(learner)
            sampled, rate = await _sample(config, team)
            found["tokens/s"] = rate
            found["gap"] = _below(await learner.logprob_gap(_groups(sampled)), bound)
            await learner.update_weights(changed=False)
            stats = await learner.learn(_queue_of(_batch(sampled)))
            if not stats.optimizer_steps or not stats.grad_norm > 0:
                raise RuntimeError(f"the update changed no weights: {stats}")
            found |= await _update_weights(learner)
            again, _ = await _sample(config, team)
            if {c.weight_version for g in again for c in g.completions} != {1}:
                raise RuntimeError("tokens after the update were not sampled with the new weights")
            found["gap after the update"] = _below(await learner.logprob_gap(_groups(again)), bound)
            memory = team.pop_memory_metrics(0)
        return found | {name: memory[key] for name, key in _memory_keys() if key in memory}
    finally:
        await team.close()


async def _sample_only(config: Config) -> Numbers:
    """Start an engine without a learner and sample."""
    actors = EvaluationActors(config)
    begun = time.perf_counter()
    await actors.start()
    try:
        [generators] = await actors.start_generators([config])
        found: Numbers = {"start s": time.perf_counter() - begun, "weights": "not synchronised: needs a third GPU"}
        begun = time.perf_counter()
        answers = [await generators.generate(prompt, _sampling(config, 0)) for prompt in _prompts(config)]
        return found | {"tokens/s": _tokens(answers) / (time.perf_counter() - begun)}
    finally:
        await actors.close()


async def _update_weights(learner: LearnerGroup) -> Numbers:
    begun = time.perf_counter()
    result = await learner.update_weights(changed=True)
    if result is None or result.failed:
        raise RuntimeError(f"weight synchronisation failed: {result}")
    return {
        "sent MB": result.sent_bytes / 2**20,
        "sync s": time.perf_counter() - begun,
        "checksum": f"{result.checksum:x}",
    }


async def _sample(config: Config, team: RunActors) -> tuple[list[Generation], float]:
    """Return one group per prompt, and tokens per second."""
    begun = time.perf_counter()
    calls = (team.generators[0].generate(p, _sampling(config, i)) for i, p in enumerate(_prompts(config)))
    answers = list(await asyncio.gather(*calls))
    return answers, _tokens(answers) / (time.perf_counter() - begun)


def _sampling(config: Config, seed: int) -> SamplingSpec:
    return SamplingSpec(GROUP, TOKENS, config.agents[0].temperature, 1.0, None, seed)


def _prompts(config: Config) -> list[str]:
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    tasks: list[Task] = load_tasks("bundled:toy", "train")[:PROMPTS]
    return [environment.first_prompts(task)[0] for task in tasks]


def _tokens(answers: list[Generation]) -> int:
    return sum(len(completion.token_ids) for answer in answers for completion in answer.completions)


def _groups(answers: list[Generation]) -> list[Group]:
    """Return groups with returns that differ within a group: the number of distinct tokens of each completion."""
    groups = []
    for answer in answers:
        returns = tuple(float(len(set(c.token_ids))) for c in answer.completions)
        mean = sum(returns) / len(returns)
        weights = tuple((value - mean) / len(returns) for value in returns)
        groups.append(Group(0, answer.prompt_ids, answer.completions, returns, weights))
    return groups


def _batch(answers: list[Generation]) -> Batch:
    groups = tuple(_groups(answers))
    return Batch(0, (MiniBatch(groups, len(groups)),))


def _queue_of(batch: Batch) -> GroupQueue:
    queue = GroupQueue(batch.step)
    queue.put(batch.mini_batches[0].groups)
    queue.close(batch)
    return queue


def _phases() -> list[tuple[str, str]]:
    return [(f"{phase} MB", phase) for phase in ("play", "asleep", "learn", "awake")]


def _memory_keys() -> list[tuple[str, str]]:
    return [(name, f"memory/device_0/{phase}") for name, phase in _phases()]


def _below(gap: float, bound: float) -> float:
    if not gap <= bound:
        raise RuntimeError(
            f"log-probabilities of engine and learner differ by {gap:.3g} nats per token, more than {bound:g}"
        )
    return gap


def _need(machine: Machine, gpus: int) -> None:
    if machine.gpus < gpus:
        raise Skipped(f"needs {gpus} GPUs; this machine has {machine.gpus}")
