"""The marl_ray side of `throughput.py`: the real loop, which pauses between blocks of steps.

The requests to the engines are recorded per step, and the run's batch log has the inputs of the learners, so that
`throughput_bare.py` can repeat both without the loop.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.throughput_comlrl import PHASES, Gate, Stopped, Workload, varied_reward
from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.cluster.ray_connection import connect, disconnect
from marl_ray.config import Config, from_tree
from marl_ray.core.chat import Prompt
from marl_ray.core.episode import Generation, Outcome, SamplingSpec
from marl_ray.data.loading import load_tasks
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.environments.code_generation.attempt import CodeAttempt
from marl_ray.external.transition import Transition
from marl_ray.launch.training_session import TrainingSession, open_metric_stream
from marl_ray.rollout.turn_player import TurnPlayer
from marl_ray.sandbox import ExecutionReport
from marl_ray.storage.resume import ResumeState
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.sinks import MetricStream, Sink
from marl_ray.trainer.context import RunInputs
from marl_ray.trainer.loop import Trainer

MAX_LENGTH = 1024


def run_folder(folder: Path) -> RunFolder:
    """Return the run folder inside the benchmark's folder."""
    return RunFolder(folder / "run")


def requests_of(folder: Path, step: int, agent: int) -> list[tuple[list[int], SamplingSpec]]:
    """Return the requests to an agent's engine in a step: prompt ids and sampling settings, in order of completion."""
    recorded = json.loads(_requests(folder, step).read_text(encoding="utf-8"))[agent]
    return [(prompt_ids, SamplingSpec(**sampling)) for prompt_ids, sampling in recorded]


def _requests(folder: Path, step: int) -> Path:
    return folder / f"requests_{step:06d}.json"


def make_config(workload: Workload, folder: Path) -> Config:
    """Return the config of the run, with the resources of the quickstart."""
    return from_tree(
        {
            "model": {
                "name": workload.model,
                "temperature": workload.temperature,
                "max_length": MAX_LENGTH,
                "use_chat_template": False,  # as in CoMLRL
                "model_kwargs": {"torch_dtype": "float32"},
            },
            "dataset": {"name": workload.dataset, "train_split": "train"},
            "output": {"base_dir": str(folder)},
            "magrpo": {
                "num_agents": workload.agents,
                "num_train_epochs": workload.max_steps,
                "max_steps": workload.max_steps,
                "learning_rate": workload.learning_rate,
                "num_generations": workload.num_generations,
                "max_new_tokens": workload.max_new_tokens,
                "rollout_buffer_size": workload.tasks_per_step,
                "save_steps": workload.max_steps,
            },
            "resources": {"generator": {"cpus": 0.5}, "learner": {"cpus": 0.25}, "sandbox": {"cpus": 0.25}},
        },
        "magrpo",
    )


@dataclass
class RecordingGenerators:
    """The generators of an agent, with the requests of the current step."""

    generators: GeneratorGroup
    requests: list[tuple[Sequence[int], dict[str, Any]]] = field(default_factory=list)

    async def generate(
        self, prompt: Prompt, sampling: SamplingSpec, priority: int = 0, history: tuple[int, ...] = ()
    ) -> Generation:
        generation = await self.generators.generate(prompt, sampling, priority, history)
        self.requests.append((generation.prompt_ids, asdict(sampling)))
        return generation


class VariedReward(CodeGeneration):
    """The code environment with all of its work (joint program, execution, levels) but a checksum as reward."""

    def outcome(self, attempt: CodeAttempt, report: ExecutionReport) -> Outcome:
        return replace(super().outcome(attempt, report), reward=varied_reward(attempt.responses))


def train(workload: Workload, gate: Gate, folder: Path) -> None:
    """Train until the gate, which is passed before each step, raises `Stopped`."""

    class GatedTrainer(Trainer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._roll_out, self.producer.roll_out = self.producer.roll_out, self.roll_out  # type: ignore[method-assign]

        async def roll_out(self, step: int) -> None:
            await self.condition.wait_for(lambda: self.recorder.state.step == step)  # the previous step is recorded
            await asyncio.to_thread(gate.pass_through)
            recording = [RecordingGenerators(generators) for generators in self.actors.generators]
            assert isinstance(self.player, TurnPlayer)
            self.player.generators = recording
            await self._roll_out(step)
            _requests(folder, step).write_text(
                json.dumps([generators.requests for generators in recording]), encoding="utf-8"
            )

    class Tally(Sink):
        """A metric sink that adds the rows to the current block."""

        def row(self, row: MetricRow, name: str) -> None:
            gate.block.joint_samples += int(row["rollout/joint_samples"])
            gate.block.tokens += int(row["rollout/tokens"])
            for phase in PHASES[:3]:
                setattr(gate.block, phase, getattr(gate.block, phase) + row[f"time/{phase}"])

    def open_tally(*arguments: Any) -> MetricStream:
        return MetricStream([*open_metric_stream(*arguments).sinks, Tally()])

    config = make_config(workload, folder)
    environment = (CodeGeneration if workload.real_reward else VariedReward)(workload.agents)
    tasks = load_tasks(workload.dataset, "train")[: workload.tasks]
    problem = RunInputs(environment, Transition(config.external, environment), tasks, [])
    run = run_folder(folder)
    run.make()
    connect(verbose=False)
    try:
        patched: dict[str, Any] = {"Trainer": GatedTrainer, "open_metric_stream": open_tally}
        with mock.patch.multiple("marl_ray.launch.training_session", **patched):
            asyncio.run(TrainingSession(config, problem, run, ResumeState.at_start()).run())
    except Stopped:
        pass
    finally:
        disconnect()


if __name__ == "__main__":
    train(Workload(**json.loads(sys.argv[2])), Gate(*map(int, sys.argv[3:5])), Path(sys.argv[5]))
