"""Overlap of rollouts and learning, measured on real actors with artificial delays and compared with the simulator.

    python -m benchmarks.rollout_overlap [--steps 8] [--check] [--json FILE]

Runs the actors of a training run with a tiny model, whose own work takes little time. Sleeping adds the durations of
`benchmarks.simulated_durations`: an engine's slots are occupied per token, and a learner is busy per completion and per
optimizer step. The result is the overlap that the loop achieves with these durations, on a machine without the
hardware. The tokens and updates of agent 1 take 1.5 times as long, as for a larger model.

`barrier` is the loop without overlap: learners start after the rollout. The simulator runs the same cases. --check
fails if a measured and a simulated rate differ by more than 20 %, if streaming is less than 1.4 times as fast as the
barrier, or staleness 1 less than 1.5 times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.simulate import Case, Figures, Rows, figures, header, line, simulate
from benchmarks.simulated_durations import Pace, SlotEngine
from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.config import Config, from_tree
from marl_ray.core.batch import Batch, Group, GroupQueue, UpdateStats
from marl_ray.core.chat import Prompt, TokenPrompt
from marl_ray.core.episode import Generation, SamplingSpec
from marl_ray.core.ids import ActorId
from marl_ray.core.state import TrainerState
from marl_ray.launch.run_checks import check
from marl_ray.launch.training_session import TrainingSession
from marl_ray.storage.resume import ResumeState
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.sinks import MetricStream
from marl_ray.trainer.loop import Trainer

PACES = (
    Pace(token_s=0.010, slots=16, mean_tokens=100, learn_s=0.040, optimizer_s=0.2, publish_s=0.0),
    Pace(token_s=0.015, slots=16, mean_tokens=100, learn_s=0.060, optimizer_s=0.2, publish_s=0.0),
)
TASKS, GROUP, TURNS = 8, 8, 2
CASES = {"barrier": (0, False), "k = 0": (0, True), "k = 1": (1, True), "k = 2": (2, True)}
"""Maximum staleness, and whether learners start before the end of the rollout."""
AGREEMENT, STREAMED, STALE = 0.2, 1.4, 1.5


def paced_actors(paces: Sequence[Pace]) -> tuple[type[GenerationActor], type[LearnerActor]]:
    """Return subclasses of the run's actors with delays."""

    def pace_of(actor: ActorId) -> Pace:
        assert actor.policy is not None  # generators and learners have a policy
        return paces[actor.policy.first_agent]

    class PacedGenerator(GenerationActor):
        async def start(self) -> list[str]:
            notes = await super().start()
            self.pace = pace_of(self.id)
            self.slots = SlotEngine(self.pace)
            return notes

        async def generate(
            self, prompt: Prompt | TokenPrompt, sampling: SamplingSpec, priority: int = 0, history: tuple[int, ...] = ()
        ) -> Generation:
            lengths = self.pace.lengths(sampling.seed, sampling.num_generations)
            delay = asyncio.ensure_future(self.slots.generate(lengths, priority))
            generation = await super().generate(prompt, sampling, priority, history)
            await delay
            return generation

    class PacedLearner(LearnerActor):
        def accumulate(self, step: int, start: int, groups: Sequence[Group]) -> None:
            with self._at_least(groups, 0.0):
                super().accumulate(step, start, groups)

        def finish(self, batch: Batch, accumulated: int) -> UpdateStats:
            groups = [group for mini_batch in batch.mini_batches for group in mini_batch.groups]
            with self._at_least(groups, pace_of(self.id).optimizer_s):
                return super().finish(batch, accumulated)

        def _at_least(self, groups: Sequence[Group], more: float) -> Any:
            pace = pace_of(self.id)
            return _MinimumDuration(sum(len(group.completions) for group in groups) * pace.learn_s + more)

    return PacedGenerator, PacedLearner


class _MinimumDuration:
    """A context that sleeps at its end until `seconds` have passed since its creation."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None:
        time.sleep(max(0.0, self.until - time.monotonic()))


class BarrierQueue(GroupQueue):
    """A queue that delivers the complete batch only."""

    async def get(self, start: int) -> Sequence[Group]:
        return []


def config_of(folder: Path, staleness: int, last_step: int) -> Config:
    """Return the config of a run with short completions."""
    section = {
        "num_agents": len(PACES),
        "num_turns": TURNS,
        "num_generations": GROUP,
        "max_new_tokens": 8,
        "rollout_buffer_size": TASKS,
        "num_train_epochs": 1000,
        "max_steps": last_step,
        "max_staleness": staleness,
        "importance": "none",
        "max_logprob_gap": None,  # the completions' spans and log-probabilities are not realistic
    }
    return from_tree(
        {
            "model": {"name": "bundled:toy-base", "max_length": 512},
            "dataset": {"name": "bundled:toy", "train_split": "train"},
            "external": {"mode": "plain"},
            "output": {"base_dir": str(folder), "run_name": "paced", "save_final_model": False},
            "magrpo": section,
        },
        "magrpo",
    )


async def measure(steps: int, folder: Path) -> dict[str, Figures]:
    """Run all cases one after another on the same actors."""
    from marl_ray.actors import run_actors as actors_module

    found: dict[str, Figures] = {}
    first = config_of(folder, 0, steps)
    problem = check(first)
    run = RunFolder(folder / "paced")
    run.make()
    generator, learner = paced_actors(PACES)
    with mock.patch.multiple(actors_module, GenerationActor=generator, LearnerActor=learner):
        session = TrainingSession(first, problem, run, ResumeState.at_start())
        team = await actors_module.start_actors(first, 10**6)
        try:
            await session.prepare(team)
            state = TrainerState(0, 0, 0)
            for name, (staleness, streams) in CASES.items():
                sink = Rows()
                config = config_of(folder, staleness, state.step + steps)
                resume_state = ResumeState(None, state, state.step, frozenset())
                queue = GroupQueue if streams else BarrierQueue
                with mock.patch("marl_ray.trainer.batch_producer.GroupQueue", queue):
                    trainer = Trainer(config, problem, run, resume_state, team, MetricStream([sink]))
                    await trainer.run()
                state = trainer.recorder.state
                found[name] = figures(sink.rows, sink.at, len(PACES))
        finally:
            await team.close()
    return found


def simulate_cases(steps: int) -> dict[str, Figures]:
    """Return the figures of the same cases in the simulator."""
    case = Case(PACES, (1, 1), tasks=TASKS, steps=steps, group=GROUP, turns=TURNS, workers=2, program_s=0.005)
    return {name: simulate(replace(case, staleness=k, streams=streams)) for name, (k, streams) in CASES.items()}


def violations(real: dict[str, Figures], simulated: dict[str, Figures]) -> list[str]:
    """Return the violated conditions of --check."""
    rates = {name: one.samples_per_s for name, one in real.items()}
    found = []
    for name, one in simulated.items():
        if abs(one.samples_per_s / rates[name] - 1) > AGREEMENT:
            found.append(f"{name}: measured {rates[name]:.2f} samples/s, simulated {one.samples_per_s:.2f}")
    for name, least in (("k = 0", STREAMED), ("k = 1", STALE)):
        if rates[name] < least * rates["barrier"]:
            found.append(
                f"{name} is {rates[name] / rates['barrier']:.2f} times as fast as the barrier, less than {least}"
            )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    from marl_ray.cluster.ray_connection import connect, disconnect

    connect(verbose=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            real = asyncio.run(measure(arguments.steps, Path(folder)))
    finally:
        disconnect()
    simulated = simulate_cases(arguments.steps)
    print(header(len(PACES)))
    for kind, cases in (("measured", real), ("simulated", simulated)):
        for name, one in cases.items():
            print(line(f"{kind} {name}", one, cases["barrier"]))
    if arguments.json:
        both = {"measured": real, "simulated": simulated}
        as_json = {kind: {name: asdict(one) for name, one in cases.items()} for kind, cases in both.items()}
        arguments.json.write_text(json.dumps(as_json, indent=1), encoding="utf-8")
    violated = violations(real, simulated)
    print("\n".join(violated) or "all conditions met")
    return 1 if violated and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
