"""TRL's GRPO with vLLM in the trainer's process, on the work of one agent of a pair. Runs in the peers' interpreter."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from typing import Any

from benchmarks.gpu_race.race import TIMED, Race, peak_memory, use_one_thread_on_a_cpu, wait_for_device
from benchmarks.gpu_race.tasks import PROMPTS, checksum


def trl(race: Race) -> None:
    """Train one policy of the smallest model, and add the seconds of a step."""
    # A race needs no network. vLLM must run in this process, as TRL's weights are loaded into its model directly.
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    use_one_thread_on_a_cpu(race)
    ends: list[float] = []

    class Clock(TrainerCallback):
        """The time of the end of each step."""

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            wait_for_device(race)
            ends.append(time.perf_counter())

    def reward(completions: list[str], **ignored: Any) -> list[float]:
        return [checksum([text]) for text in completions]

    work = race.work
    samples = work.tasks * work.generations
    name = race.smallest
    engine = _engine(race)
    config = GRPOConfig(
        output_dir=str(race.folder / "trl"),
        max_steps=TIMED + 1,
        # A micro-batch is one group, and an optimizer step has all tasks of a step.
        per_device_train_batch_size=work.generations,
        gradient_accumulation_steps=work.tasks,
        num_generations=work.generations,
        max_completion_length=work.completion,
        temperature=1.0,
        beta=0.0,
        gradient_checkpointing=False,
        bf16=not race.on_cpu,
        use_cpu=race.on_cpu,
        save_strategy="no",
        report_to="none",
        **engine,
    )
    trainer = GRPOTrainer(
        model=str(race.model(name)),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": list(PROMPTS)}),
        callbacks=[Clock()],
    )
    begun = time.perf_counter()
    trainer.train()
    whole = time.perf_counter() - begun
    durations = [after - before for before, after in itertools.pairwise(ends)]
    seconds = statistics.median(durations)
    lengths = [row["completions/mean_length"] for row in trainer.state.log_history if "completions/mean_length" in row]
    race.add(
        "trl",
        name,
        model=name,
        sampled_with="transformers, as TRL cannot update vLLM on a CPU" if race.on_cpu else "vLLM, colocated",
        samples=samples,
        s_per_step=seconds,
        s_per_sample=seconds / samples,
        completion_tokens=statistics.mean(lengths) if lengths else None,
        whole_run_s=whole,
        **peak_memory(race),
    )


def _engine(race: Race) -> dict[str, Any]:
    """Return TRL's settings of its engine, in which all completions have the same length."""
    if race.on_cpu:
        # On a CPU, vLLM packs the weights of its layers and drops the parameters that TRL would load new weights into.
        return {"use_vllm": False, "generation_kwargs": {"min_new_tokens": race.work.completion}}
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_length": 512,
        "generation_kwargs": {"min_tokens": race.work.completion},
    }
