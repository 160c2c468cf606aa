"""Whole training runs of this system: a pair of agents, and the reference's usual run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu_race.race import AGENTS, TIMED, Race, Work

RESIDENCIES = ("resident", "turns")
REFERENCE_STEPS = 3
"""Steps of the reference's usual run, of which the first is left out: 12 prompts."""


def pair(race: Race) -> None:
    """Train a pair of the smallest model, resident and in turns, and add the seconds of each phase."""
    settings = {"max_steps": TIMED + 1}
    for residency in RESIDENCIES:
        _train(race, "pair", race.smallest, residency, settings)


def reference(race: Race) -> None:
    """Train a pair of the largest model over two turns as a full tree: the reference's usual run. Its optimizer states
    are streamed, because they do not fit on a GPU of 80 GB."""
    settings: dict[str, Any] = {
        "max_steps": REFERENCE_STEPS,
        "num_turns": 2,
        "handoff": "all",  # a full tree: every joint action of the first turn is continued
        "num_generations": race.reference_generations,
        "gradient_checkpointing": True,
    }
    _train(race, "reference", race.largest, "stream", settings)


def tags(race: Race) -> None:
    """Train a pair with the sizes of the tags example (135M parameters, 14 new tokens): little arithmetic."""
    settings = {"max_steps": TIMED + 1}
    for residency in RESIDENCIES:
        _train(race, "tags", race.tags_model, residency, settings, race.tags_work)


def _train(
    race: Race, part: str, model: str, residency: str, settings: Mapping[str, Any], work: Work | None = None
) -> None:
    from marl_ray.config import from_tree
    from marl_ray.launch.run import train
    from marl_ray.telemetry.sinks import read_rows

    tree = config_tree(race, model, "magrpo", {"num_agents": AGENTS, **settings}, work)
    tree["environment"] = f"benchmarks.gpu_race.environment:{'tags' if part == 'tags' else 'environment'}"
    del tree["dataset"]  # the environment has its own
    # The second prompt of `tasks.second_prompt`.
    tree["external"] = {"mode": "plain", "original_prompt": True, "previous_response": False}
    tree["resources"] |= _resources(race, residency)
    # Milliseconds keep a repeated race apart from the last one.
    name = f"{part}-{residency}-{time.time_ns() // 10**6}"
    tree["output"] = {"base_dir": str(race.folder / "runs"), "run_name": name, "save_final_model": False}
    begun = time.perf_counter()
    train(from_tree(tree, "magrpo"))
    whole = time.perf_counter() - begun
    rows = list(read_rows(race.folder / "runs" / name / "metrics.jsonl"))[1:]
    seconds = _phases(rows)
    joint_samples = statistics.median(row["rollout/joint_samples"] for row in rows)
    race.add(
        part,
        f"{model} {residency}",
        model=model,
        turns=settings.get("num_turns", 1),
        joint_samples=joint_samples,
        s_per_joint_sample=seconds["step"] / joint_samples,
        completion_tokens=statistics.mean(row["rollout/completion_tokens_mean"] for row in rows),
        whole_run_s=whole,
        **seconds,
    )


def _phases(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the median seconds of each phase of a step."""
    seconds = {}
    for key in rows[0]:
        section, _, phase = key.partition("/")
        if section != "time" or "/" in phase or phase == "held_up_by":
            continue
        values = [row[key] for row in rows if isinstance(row.get(key), int | float)]
        if values:
            seconds[phase] = statistics.median(values)
    return seconds


def config_tree(
    race: Race, model: str, section: str, settings: Mapping[str, Any], work: Work | None = None
) -> dict[str, Any]:
    """Return the tree of a config for some work, by default the race's. All completions have the maximum length."""
    work = work or race.work
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
    on_gpu: dict[str, Any] = {"generator": {"gpus": 0.5, "gpu_memory_utilization": 0.4}}
    return {"colocate": residency, **({} if race.on_cpu else on_gpu)}
