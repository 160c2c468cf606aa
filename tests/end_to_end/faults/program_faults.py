"""Kill processes of a run that trains a program, at random moments, and compare the run with an undisturbed one.

    python -m tests.end_to_end.faults.program_faults --kills 20 --seed 1

Each trial is a run of `conversing_program.py` with two tiny agents and `max_staleness: 0` on a local Ray instance.
Again and again, after a random time, it kills a generator, a learner, the process of an episode, its launcher, or the
driver, in which the gateway is; a killed driver is resumed. Trials are repeated until `--kills` processes were killed.
Weights, metrics and logged batches of every trial must equal the undisturbed run's bit for bit. In the undisturbed run
the batch log must have every sampled completion once, with its prompt, so each trial trains every token once.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.cli.train import train_main
from marl_ray.core.chat import TokenPrompt
from marl_ray.core.episode import Generation, SamplingSpec
from marl_ray.storage.batch_log import BatchLog
from tests.end_to_end.faults.actor_faults import (
    TITLES,
    RunResult,
    console_file,
    differences,
    read_result,
    steps_done,
    wait_for_result,
)
from tests.end_to_end.helpers import environment
from tests.factories import ROOT

PROGRAM = Path(__file__).with_name("conversing_program.py")
VICTIMS = {"generator": 5, "learner": 5, "program": 6, "launcher": 2, "driver": 2}
"""Kinds of processes, with the weights of their choice. A driver takes longest to start again."""
STEPS, TASKS, SIBLINGS, CALLS = 12, 2, 4, 2
"""Steps of a run, tasks per step, episodes per task, and calls of each agent in an episode."""
RUN_S = 1800.0
"""Limit of a whole run with its kills, in seconds."""
PRIORITY = {"RAY_worker_niceness": "0"}
"""Actors run at the priority of the test, so that a busy machine does not delay their starts for minutes."""
FIND_S = 60.0
END_S = 90.0


@dataclass(frozen=True)
class Kill:
    """A killed process: its kind, its number, and the steps that the run had finished."""

    victim: str
    pid: int
    steps: int


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start or resume the run of a folder; its console output goes to a file beside the folder."""
    settings = {
        "output.base_dir": folder.parent,
        "output.run_name": folder.name,
        "output.resume": "auto",
        "output.keep_batches": "true",
        "gateway.command": f"{sys.executable} {PROGRAM} {{task_file}}",
        "gateway.retries": 5,
        "dataset.eval_split": "null",
        "magrpo.max_steps": STEPS,
        "magrpo.rollout_buffer_size": TASKS,
        "magrpo.num_generations": SIBLINGS,
        "magrpo.save_steps": 3,
        "magrpo.max_staleness": 0,
        "resources.generator.kv_cache_mb": 64,
        "resources.generator.max_restarts": 100,
        "resources.learner.max_restarts": 100,
    }
    arguments = [part for key, value in settings.items() for part in ("--override", f"{key}={value}")]
    command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, "--driver", str(folder)]
    command += ["--config", str(ROOT / "configs" / "toy_gateway.yaml"), *arguments]
    with console_file(folder).open("w") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, env=environment() | PRIORITY
        )


def drive(folder: Path, arguments: list[str]) -> int:
    """Train in this process, and append every completion of a call, with its prompt, to a file of the folder's name."""
    generate = GeneratorGroup.generate

    async def recording(
        self: GeneratorGroup, prompt: Any, sampling: SamplingSpec, priority: int = 0, history: tuple[int, ...] = ()
    ) -> Generation:
        generation = await generate(self, prompt, sampling, priority, history)
        if isinstance(prompt, TokenPrompt):
            with folder.with_suffix(".jsonl").open("a") as file:
                for one in generation.completions:
                    file.write(json.dumps([generation.prompt_ids, one.token_ids]) + "\n")
        return generation

    GeneratorGroup.generate = recording  # type: ignore[method-assign]
    sys.argv = ["train", *arguments]
    return train_main("magrpo")


def find(victim: str, driver: subprocess.Popen[bytes]) -> Iterator[psutil.Process]:
    """Yield the running processes of a kind."""
    if victim == "driver":
        yield psutil.Process(driver.pid)
        return
    for process in psutil.Process(driver.pid).children(recursive=True):
        try:
            line = process.cmdline()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        is_launcher = any(word.endswith("gateway/launcher.py") for word in line)
        if victim in TITLES:
            found = bool(line) and line[0].startswith(TITLES[victim])
        else:
            found = str(PROGRAM) in line and is_launcher == (victim == "launcher")
        if found:
            yield process


def kill_one(victim: str, driver: subprocess.Popen[bytes], rng: random.Random) -> int | None:
    """Kill a process of a kind as soon as there is one, and return its number; None if the run ends before."""
    end = time.monotonic() + FIND_S
    while driver.poll() is None and time.monotonic() < end:
        candidates = sorted(find(victim, driver), key=lambda process: process.pid)
        for process in rng.sample(candidates, len(candidates)):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
            return process.pid
    return None


def wait_until_ready(driver: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until the actors have started: a loss before ends the run. Raises TimeoutError."""
    end = time.monotonic() + RUN_S
    while driver.poll() is None and "ready after" not in console_file(folder).read_text():
        if time.monotonic() > end:
            raise TimeoutError(f"the run did not start in {RUN_S:g} s: {console_file(folder).read_text()}")
        time.sleep(0.05)


def run(folder: Path, kills: int, wait_s: float, rng: random.Random) -> tuple[RunResult, list[Kill]]:
    """Run once, with at most `kills` kills, each 0 to `wait_s` seconds after the one before. Raises RuntimeError if the
    run fails."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    begin, killed = time.monotonic(), list[Kill]()
    driver = start(folder)
    try:
        while driver.poll() is None and len(killed) < kills:
            wait_until_ready(driver, folder)
            time.sleep(rng.uniform(0.0, wait_s))
            if driver.poll() is not None:
                break
            victim, steps = rng.choices(list(VICTIMS), list(VICTIMS.values()))[0], steps_done(folder)
            processes = psutil.Process(driver.pid).children(recursive=True)
            pid = kill_one(victim, driver, rng)
            if pid is None:
                continue
            killed.append(Kill(victim, pid, steps))
            print(f"  {folder.name}: {victim} {pid} killed after {steps} steps", flush=True)
            if victim == "driver":
                driver.wait()
                _, alive = psutil.wait_procs(processes, timeout=END_S)
                if alive:
                    raise RuntimeError(f"processes that outlive their driver: {[one.cmdline() for one in alive]}")
                driver = start(folder)
        return without_retries(wait_for_result(driver, folder, begin, RUN_S)), killed
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait()


def without_retries(result: RunResult) -> RunResult:
    """Return the results without the number of repeated episodes, the only metric that faults may change."""
    return replace(result, rows=[{k: v for k, v in row.items() if k != "gateway/retried"} for row in result.rows])


def check_each_token_once(folder: Path) -> int:
    """Return the number of sampled tokens. Raises AssertionError unless the batch log has each completion once."""
    lines = folder.with_suffix(".jsonl").read_text().splitlines()
    sampled = [(tuple(prompt), tuple(ids)) for prompt, ids in map(json.loads, lines)]
    log = BatchLog(folder / "batches")
    logged = [
        (prompt, completion.token_ids)
        for step in range(STEPS)
        for batch in log.read(step, 2).batches
        for mini_batch in batch.mini_batches
        for group in mini_batch.groups
        for prompt, completion in zip(group.prompts, group.completions, strict=True)
    ]
    assert len(sampled) == STEPS * TASKS * SIBLINGS * CALLS * 2
    assert Counter(logged) == Counter(sampled)
    return sum(len(ids) for _, ids in sampled)


def check(result: RunResult, folder: Path, reference: RunResult, undisturbed: Path) -> None:
    """Raise AssertionError unless the results and the logged batches are equal."""
    assert result.rows == reference.rows, differences(result.rows, reference.rows)
    assert result.weights == reference.weights, "the weights differ"
    own, others = BatchLog(folder / "batches"), BatchLog(undisturbed / "batches")
    assert own.steps() == others.steps() == list(range(STEPS))
    for step in own.steps():
        assert own.read(step).batches == others.read(step).batches, f"the batches of step {step} differ"


def main() -> int:
    if sys.argv[1:2] == ["--driver"]:
        return drive(Path(sys.argv[2]), sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wait", type=float, default=15.0, help="longest time between two kills, in seconds")
    parser.add_argument("--folder", type=Path, default=Path("fault_trials"))
    options = parser.parse_args()
    rng, folder = random.Random(options.seed), options.folder.absolute()
    undisturbed = folder / "undisturbed"
    if (undisturbed / "models").exists():
        reference = without_retries(read_result(undisturbed, 0.0))
    else:
        reference, _ = run(undisturbed, 0, 0.0, rng)
    tokens = check_each_token_once(undisturbed)
    print(f"undisturbed: {reference.seconds:.0f} s, {tokens} sampled tokens, each of them logged once", flush=True)
    killed, trials, failures = list[Kill](), 0, 0
    while len(killed) < options.kills and not failures:
        trial = folder / f"trial_{trials:02d}"
        trials += 1
        try:
            result, own = run(trial, options.kills - len(killed), options.wait, rng)
            check(result, trial, reference, undisturbed)
        except (AssertionError, RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
            failures += 1
            print(f"{trial.name} FAILED: {error}", flush=True)
            continue
        killed += own
        print(f"{trial.name}: {len(own)} kills, equal to the undisturbed run, {result.seconds:.0f} s", flush=True)
    counts = Counter(one.victim for one in killed)
    print(f"{len(killed)} kills in {trials} runs: {', '.join(f'{n} {name}' for name, n in sorted(counts.items()))}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
