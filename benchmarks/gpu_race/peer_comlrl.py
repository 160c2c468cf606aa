"""CoMLRL's MAGRPO as released, on the work of this system's parts. Runs in the peers' interpreter.

The trainer is not changed: it samples with transformers, one agent and one prompt after another. Prompts are counted in
the data set, from which the trainer takes one at a time: when it takes the next, the update of the last is complete.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu_race.race import AGENTS, Race, peak_memory, use_one_thread_on_a_cpu, wait_for_device
from benchmarks.gpu_race.tasks import PROMPTS, checksum, second_prompt

MAX_PROMPTS = 3


def comlrl(race: Race) -> None:
    """Train the pair of the part `pair`, and add one row per prompt."""
    _train(race, "comlrl", race.smallest, turns=1, generations=race.work.generations)


def comlrl_reference(race: Race) -> None:
    """Train the pair of the part `reference` over two turns, and add one row per prompt."""
    _train(race, "comlrl_reference", race.largest, turns=2, generations=race.reference_generations)


@dataclass
class _Prompt:
    """The measurements of one prompt."""

    begun: float
    rollout_s: float = 0.0
    learn_s: float = 0.0
    joint_samples: int = 0
    sequences: int = 0
    tokens: int = 0


class _NoTimeLeft(Exception):
    """Raised in the data set when the next prompt would exceed the part's limit."""


def _train(race: Race, part: str, model: str, turns: int, generations: int) -> None:
    # A race needs no network and sends nothing.
    os.environ.update(HF_HUB_OFFLINE="1", WANDB_MODE="disabled")
    from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer

    use_one_thread_on_a_cpu(race)
    now = _Prompt(time.perf_counter())

    class Prompts:
        """A data set that adds the row of a prompt when the next one is taken."""

        def __len__(self) -> int:
            return MAX_PROMPTS + 1

        def __getitem__(self, number: int) -> dict[str, str]:
            nonlocal now
            seconds = 0.0
            if number > 0:
                seconds = _add_row(race, part, model, turns, number, now)
            if number == MAX_PROMPTS or seconds > race.left_s:
                raise _NoTimeLeft
            now = _Prompt(time.perf_counter())
            return {"prompt": PROMPTS[number]}

    class InOrder(MAGRPOTrainer):
        """The trainer with a clock around its two phases."""

        def _generate_completions(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            begun = time.perf_counter()
            result = super()._generate_completions(*args, **kwargs)
            now.rollout_s += time.perf_counter() - begun
            for ids in result["completion_input_ids"][0]:
                now.sequences += 1
                now.tokens += len(ids)
            return result

        def _update_from_samples(self, agent_idx: int, samples: Any) -> None:
            begun = time.perf_counter()
            super()._update_from_samples(agent_idx, samples)
            wait_for_device(race)
            now.learn_s += time.perf_counter() - begun

    def reward(*completions: list[str]) -> list[float]:
        now.joint_samples += len(completions[0])
        return [checksum(answers) for answers in zip(*completions, strict=True)]

    def next_prompts(prompt: str, **ignored: Any) -> list[str]:
        return [second_prompt(prompt)] * AGENTS

    # A node is a prompt of one turn. The buffer holds all nodes of a tree, so that there is one update per turn.
    nodes = 1 if turns == 1 else 1 + generations
    trainer = InOrder(
        agent_model=str(race.model(model)),
        num_agents=AGENTS,
        model_config={"torch_dtype": race.dtype},
        train_dataset=Prompts(),
        reward_func=reward,
        formatters=[lambda item: item["prompt"]] * AGENTS,
        external_transition=next_prompts,
        args=MAGRPOConfig(
            num_train_epochs=1,
            num_agents=AGENTS,
            agent_devices=race.device,
            num_generations=generations,
            max_new_tokens=race.work.completion,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            num_turns=turns,
            external_prompt_passthrough=True,
            early_termination_threshold=None,
            eval_interval=0,
            rollout_buffer_size=nodes,
            advantage_normalization=False,
        ),
        wandb_config=None,
    )
    try:
        # The trainer hands further arguments to `generate`: all completions have the same length.
        trainer.train(min_new_tokens=race.work.completion)
    except _NoTimeLeft:
        pass


def _add_row(race: Race, part: str, model: str, turns: int, number: int, measured: _Prompt) -> float:
    """Add the row of a prompt, and return its seconds."""
    wait_for_device(race)
    seconds = time.perf_counter() - measured.begun
    race.add(
        part,
        f"{model} prompt {number}",
        model=model,
        turns=turns,
        joint_samples=measured.joint_samples,
        s_per_joint_sample=seconds / measured.joint_samples,
        completion_tokens=measured.tokens / measured.sequences,
        s=seconds,
        rollout=measured.rollout_s,
        learn=measured.learn_s,
        **peak_memory(race),
    )
    return seconds
