"""The training loop on simulated hardware: the real trainer on a virtual clock.

    python -m benchmarks.simulate                                  # staleness 0, 1, 2 for 1 and 10 generators
    python -m benchmarks.simulate --replicas 1000 --steps 4        # about ten minutes
    python -m benchmarks.simulate --replicas 8 --tasks 64 --paces "token_s=0.02,learn_s=0.04;token_s=0.01"
    python -m benchmarks.simulate --mtbf 600 --restart 60          # a generator fails every ten minutes on average

Engines, sandbox and learners are simulated (`benchmarks.simulated_durations`); the code of a real run decides when each
of them starts. Every row is one run, without its first step.

| column | meaning |
|---|---|
| `barrier` (row) | a loop whose learners start after the rollout |
| `k = 0` (row) | max_staleness 0: learners start with the first groups |
| x | samples/s relative to the barrier |
| slots | idle share of the engines' slots |
| gate | share of the time without a rollout, while the gate waits for all agents to update their weights |
| learners | idle share of each agent's learner |
| stale, max | mean and maximum number of versions between the sampling weights and the current weights |

A pace has token_s, slots, mean_tokens, sigma, learn_s, optimizer_s, publish_s (`benchmarks/simulated_durations.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.simulated_actors import Generators, Learner, NoLog, Sandbox, SyntheticEnvironment, VirtualLoop
from benchmarks.simulated_durations import Pace, parse_paces
from marl_ray.config import Config, from_tree
from marl_ray.core.episode import Task
from marl_ray.external.transition import Transition
from marl_ray.storage.resume import ResumeState
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.sinks import MetricStream, Sink
from marl_ray.trainer.context import RunInputs
from marl_ray.trainer.loop import Trainer

GROUP = 8
TURNS = 2


@dataclass
class Rows(Sink):
    """A metric sink that keeps all rows with their times."""

    rows: list[MetricRow] = field(default_factory=list)
    at: list[float] = field(default_factory=list)

    def row(self, row: MetricRow, name: str) -> None:
        self.rows.append(row)
        self.at.append(asyncio.get_running_loop().time())


@dataclass(frozen=True)
class Case:
    """A simulated run; `replicas` and `paces` have one entry per agent."""

    paces: tuple[Pace, ...]
    replicas: tuple[int, ...]
    staleness: int = 0
    tasks: int = 8
    steps: int = 12
    streams: bool = True
    workers: int = 64
    program_s: float = 0.05
    mtbf_s: float = 0.0
    restart_s: float = 60.0
    group: int = GROUP
    turns: int = TURNS
    seed: int = 0
    shared: bool = False
    """Whether all agents share the policy of agent 0, with its pace."""
    uninformative: float | None = None
    """Share of tasks whose completions have equal rewards (dynamic sampling skips them); None: no dynamic_sampling."""

    def config(self, folder: Path) -> Config:
        """Return the config of the run."""
        section = {
            "num_agents": len(self.paces),
            "num_turns": self.turns,
            "num_generations": self.group,
            "rollout_buffer_size": self.tasks,
            "num_train_epochs": self.steps,
            "max_steps": self.steps,
            "max_staleness": self.staleness,
            "policy": 0 if self.shared else None,
            "dynamic_sampling": self.uninformative is not None,
        }
        output = {"base_dir": str(folder), "save_final_model": False, "episodes_per_step": 0}
        external = {"mode": "plain"}
        tree = {"seed": self.seed, "model": {"name": "simulated"}, "dataset": {"name": "bundled:toy"}, "output": output}
        return from_tree(tree | {"external": external, "magrpo": section}, "magrpo")


@dataclass(frozen=True)
class Figures:
    """Rates of a run without its first step, which begins without weights to wait for."""

    samples_per_s: float
    step_s: float
    engine_idle: float
    """Share of slot seconds without a sequence, over all engines."""
    gate_idle: float
    """Share of the time without a rollout."""
    learner_idle: tuple[float, ...]
    """Share of the time that the learner of each agent waited."""
    staleness_mean: float
    staleness_max: float


def figures(rows: Sequence[MetricRow], at: Sequence[float], agents: int, engine_idle: float = 0.0) -> Figures:
    """Return the figures of a run from its rows and the times of these rows."""
    later, seconds = rows[1:], at[-1] - at[0]

    def total(name: str) -> float:
        return sum(float(row.get(name, 0.0)) for row in later)

    staleness = [float(row[f"agent_{i}/staleness_mean"]) for row in later for i in range(agents)]
    return Figures(
        samples_per_s=total("rollout/joint_samples") / seconds,
        step_s=seconds / len(later),
        engine_idle=engine_idle,
        gate_idle=total("time/idle") / seconds,
        learner_idle=tuple(total(f"time/agent_{i}/wait") / seconds for i in range(agents)),
        staleness_mean=statistics.fmean(staleness),
        staleness_max=max(float(row[f"agent_{i}/staleness_max"]) for row in later for i in range(agents)),
    )


def simulate(case: Case) -> Figures:
    """Run a case on a virtual clock and return its figures."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, tempfile.TemporaryDirectory() as folder:
        return runner.run(_run(case, Path(folder)))


async def _run(case: Case, folder: Path) -> Figures:
    sink, generators = await run_trainer(case, folder)
    seconds = asyncio.get_running_loop().time()
    engines = [engine for group in generators for engine in group.engines]
    used = sum(engine.busy_s for engine in engines) / (seconds * sum(engine.pace.slots for engine in engines))
    return figures(sink.rows, sink.at, len(case.paces), 1 - used)


async def run_trainer(
    case: Case, folder: Path, resume_state: ResumeState | None = None, log: Any = None
) -> tuple[Rows, list[Generators]]:
    """Start or resume a simulated run, and return its rows and generators."""
    agents = range(len(case.paces))
    config, environment = case.config(folder), SyntheticEnvironment(len(case.paces), case.uninformative or 0.0)
    generators = {
        p: Generators(
            case.paces[p.first_agent],
            case.replicas[p.first_agent],
            case.mtbf_s,
            case.restart_s,
            case.seed + p.first_agent,
        )
        for p in config.policies
    }
    team: Any = SimpleNamespace(
        generators=[generators[config.policy_of(i)] for i in agents],
        learners=[Learner(p, case.paces[p.first_agent], group, case.streams) for p, group in generators.items()],
        sandbox=Sandbox(case.workers, case.program_s),
        pop_memory_metrics=lambda step: {},
        take_queue_metrics=dict,
    )
    count = case.tasks * (1 if case.uninformative is None else 8)  # enough for some informative tasks
    tasks = [Task(f"imagined/{i}", "Say something.", {}) for i in range(count)]
    problem = RunInputs(environment, Transition(config.external, environment), tasks, [])
    sink = Rows()
    resume_state = resume_state or ResumeState.at_start()
    for learner in team.learners:
        learner.step = learner.generators.version = resume_state.state.step
    run = RunFolder(folder / "run")
    run.log = log or NoLog()  # type: ignore[assignment]
    await Trainer(config, problem, run, resume_state, team, MetricStream([sink])).run()
    return sink, list(generators.values())


def line(name: str, found: Figures, base: Figures | None = None) -> str:
    """Return one aligned line of the table."""
    idle = " ".join(f"{share:4.0%}" for share in found.learner_idle)
    gain = f"{found.samples_per_s / base.samples_per_s:6.2f}" if base is not None else f"{'':6}"
    return (
        f"{name:<26}{found.samples_per_s:>10.1f}{gain}{found.step_s:>9.2f}{found.engine_idle:>9.0%}"
        f"{found.gate_idle:>7.0%}   {idle:<{5 * len(found.learner_idle)}}{found.staleness_mean:>7.2f}"
        f"{found.staleness_max:>4.0f}"
    )


def header(agents: int) -> str:
    """Return the header of the table."""
    width = max(5 * agents, 9)
    return f"{'':<26}{'samples/s':>10}{'x':>6}{'step s':>9}{'slots':>9}{'gate':>7}   {'learners':<{width}} stale max"


def numbers(text: str) -> list[int]:
    """Convert an argument such as `1,10` to numbers."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=numbers, default="1,10", help="generators per agent (default 1,10)")
    parser.add_argument("--staleness", type=numbers, default="0,1,2", help="values of max_staleness (default 0,1,2)")
    parser.add_argument(
        "--paces", type=parse_paces, default=";", help="one pace per agent, such as token_s=0.02,slots=64;..."
    )
    parser.add_argument("--tasks", type=int, default=8, help="tasks per step and replica (default 8)")
    parser.add_argument("--steps", type=int, default=12, help="steps per run (default 12)")
    parser.add_argument(
        "--mtbf", type=float, default=0.0, help="mean seconds between failures of a generator (default 0: none)"
    )
    parser.add_argument("--restart", type=float, default=60.0, help="seconds until it serves again (default 60)")
    arguments = parser.parse_args()
    paces = arguments.paces
    print(header(len(paces)))
    for replicas in arguments.replicas:
        shared = tuple(replace(p, learn_s=p.learn_s / replicas) for p in paces)  # learners scale with the generators
        case = Case(
            shared,
            (replicas,) * len(paces),
            tasks=arguments.tasks * replicas,
            steps=arguments.steps,
            workers=64 * replicas,
            mtbf_s=arguments.mtbf,
            restart_s=arguments.restart,
        )
        base = simulate(replace(case, streams=False))
        print(line(f"{replicas} each, barrier", base, base))
        for staleness in arguments.staleness:
            print(line(f"{replicas} each, k = {staleness}", simulate(replace(case, staleness=staleness)), base))


if __name__ == "__main__":
    main()
