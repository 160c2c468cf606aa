"""The CoMLRL side of `throughput.py`, and the code that both sides share: workload, alternation and reward.

`throughput.py` imports this module and also starts it as a script in CoMLRL's own environment, so only the standard
library is imported at the top.

CoMLRL's MAGRPO trainer runs unchanged. Steps are counted in the data set, from which the trainer takes one task at a
time: when it takes the first task of a step, the update of the previous step is complete. Generation and updates are
timed around the trainer's methods.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

COMLRL = "comlrl==1.4.3"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
PHASES = ("rollout", "learn", "sync", "other")


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload of both sides. `prompts` is a .jsonl file with one list of prompts per task, one prompt per agent.
    Only the first `tasks` tasks of the dataset are used, so that all steps have the same size."""

    model: str
    dataset: str
    tasks: int
    prompts: str
    real_reward: bool
    tasks_per_step: int
    max_steps: int
    agents: int = 2
    num_generations: int = 8
    max_new_tokens: int = 64
    temperature: float = 1.0
    learning_rate: float = 1e-5


@dataclass(slots=True)
class Block:
    """A block of steps of one side. `seconds` is the wall time from its first step until the next step would start."""

    steps: int = 0
    seconds: float = 0.0
    joint_samples: int = 0
    tokens: int = 0
    rollout: float = 0.0
    learn: float = 0.0
    sync: float = 0.0

    @property
    def rate(self) -> float:
        """Joint samples per second."""
        return self.joint_samples / self.seconds

    def share(self, phase: str) -> float:
        """Return the share of a phase in the wall time. `other` is the time outside the measured phases."""
        if phase == "other":
            return max(0.0, 1 - (self.rollout + self.learn + self.sync) / self.seconds)
        return float(getattr(self, phase)) / self.seconds


class Stopped(Exception):
    """Raised when the benchmark needs no more steps."""


class Gate:
    """The connection of a side to the benchmark. The side calls `pass_through` before each step and adds to `block`."""

    def __init__(self, commands: int, replies: int) -> None:
        self._commands = os.fdopen(commands, "r", encoding="utf-8")
        self._replies = os.fdopen(replies, "w", encoding="utf-8")
        self._left = 0
        self.threads = 0
        """Number of torch threads of CoMLRL in this block; 0: torch's default."""
        self._started: float | None = None
        self.block = Block()

    def pass_through(self) -> None:
        """Return at once within a block; at its end, report the block and wait for the next. Raises Stopped."""
        if self._left == 0:
            if self._started is not None:
                self.block.seconds = time.monotonic() - self._started
            self._replies.write(json.dumps(asdict(self.block)) + "\n")
            self._replies.flush()
            line = self._commands.readline()
            if not line.strip():
                raise Stopped
            self._left, self.threads = map(int, line.split())
            self.block = Block(steps=self._left)
            self._started = time.monotonic()
        self._left -= 1


def varied_reward(texts: Sequence[str]) -> float:
    """Return a checksum of the texts in [0, 1), so that no completion of a group has advantage 0."""
    return zlib.crc32("\0".join(texts).encode()) / 2**32


def comlrl_python(folder: Path) -> str:
    """Return the Python of CoMLRL's environment, created on first use with the same torch and transformers."""
    from importlib.metadata import version

    python = folder / "bin" / "python"
    done = folder / ".installed"
    if not done.exists():
        print(f"installing {COMLRL} into {folder} (first use only, some minutes)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        torch = f"torch=={version('torch').split('+')[0]}+cpu"
        if subprocess.run([*install, torch], stderr=subprocess.DEVNULL).returncode:
            subprocess.run([*install, torch, "--index-url", TORCH_INDEX], check=True)
        subprocess.run([*install, COMLRL, f"transformers=={version('transformers')}"], check=True)
        done.touch()
    return str(python)


def torch_threads(number: int | None = None) -> int:
    """Set the number of torch threads if given, and return the number."""
    import torch

    if number is not None:
        torch.set_num_threads(number)
    return torch.get_num_threads()


class GatedTasks:
    """A map-style data set that repeats `rows` and passes the gate before the first task of each step."""

    def __init__(self, rows: list[list[str]], workload: Workload, gate: Gate) -> None:
        self.rows, self.per_step, self.gate = rows, workload.tasks_per_step, gate
        self.length = workload.max_steps * workload.tasks_per_step
        self.all_threads = torch_threads()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index % self.per_step == 0:
            self.gate.pass_through()
            torch_threads(self.gate.threads or self.all_threads)
        return {"prompts": self.rows[index % len(self.rows)]}


def main() -> None:
    """Train until the gate raises `Stopped`."""
    from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer

    workload, gate = Workload(**json.loads(sys.argv[2])), Gate(*map(int, sys.argv[3:5]))
    rows = [json.loads(line) for line in Path(workload.prompts).read_text(encoding="utf-8").splitlines()]

    class TimedTrainer(MAGRPOTrainer):
        def _generate_completions(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            begun = time.monotonic()
            result = super()._generate_completions(*args, **kwargs)
            gate.block.rollout += time.monotonic() - begun
            gate.block.tokens += sum(result["response_lens"])
            return result

        def _update_from_samples(self, agent_idx: int, samples: Any) -> None:
            begun = time.monotonic()
            super()._update_from_samples(agent_idx, samples)
            gate.block.learn += time.monotonic() - begun

    def reward(*completions: list[str]) -> list[float]:
        gate.block.joint_samples += len(completions[0])
        return [varied_reward(texts) for texts in zip(*completions, strict=True)]

    trainer = TimedTrainer(
        agent_model=workload.model,
        num_agents=workload.agents,
        model_config={"torch_dtype": "float32"},
        train_dataset=GatedTasks(rows, workload, gate),
        reward_func=reward,
        formatters=[lambda item, agent=agent: item["prompts"][agent] for agent in range(workload.agents)],
        args=MAGRPOConfig(
            num_train_epochs=1,
            agent_learning_rate=workload.learning_rate,
            num_agents=workload.agents,
            agent_devices="cpu",
            num_generations=workload.num_generations,
            max_new_tokens=workload.max_new_tokens,
            temperature=workload.temperature,
            top_p=1.0,
            top_k=0,
            num_turns=1,
            early_termination_threshold=None,
            eval_interval=0,
            rollout_buffer_size=workload.tasks_per_step,
            advantage_normalization=False,
        ),
        wandb_config=None,
    )
    try:
        trainer.train()
    except Stopped:
        pass


if __name__ == "__main__":
    main()
