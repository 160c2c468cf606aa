"""Kill random processes of a run, and compare the results with a run without faults.

    python -m tests.end_to_end.faults.actor_faults --trials 20 --staleness 0 --seed 1
    python -m tests.end_to_end.faults.actor_faults --trials 20 --staleness 2

Each trial is a run of two tiny agents on a cluster of three worker nodes. At a random time it kills a generator, a
learner, a sandbox worker, the zygote of a sandbox, or a whole node, which returns a little later. With staleness 0,
metrics and weights must equal the reference run's bitwise. Otherwise the run must succeed, with every prompt
sample in exactly one batch and no token staler than the bound.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.end_to_end.faults.ray_cluster import RayCluster, ray_cluster
from tests.end_to_end.helpers import without_times
from tests.factories import QUICKSTART, ROOT

VICTIMS = ("generator", "learner", "sandbox", "zygote", "node")
TITLES = {"generator": "ray::GenerationActor", "learner": "ray::LearnerActor", "sandbox": "ray::SandboxWorker"}
STEPS = 8
TASKS = 2
RUN_S = 400.0
NODE_BACK_S = 3.0


@dataclass(frozen=True)
class Fault:
    """The kind of process to kill, `delay_s` seconds after `steps` steps have finished."""

    victim: str
    steps: int
    delay_s: float

    @classmethod
    def sample(cls, rng: random.Random) -> Fault:
        return cls(rng.choice(VICTIMS), rng.randrange(STEPS - 2), rng.uniform(0.0, 1.0))


@dataclass(frozen=True)
class RunResult:
    """Results of a run: rows without times, hashes of the weights, and console output."""

    rows: list[dict]
    weights: list[str]
    console: str
    seconds: float


def start(folder: Path, address: str, staleness: int, *arguments: str) -> subprocess.Popen:
    """Start a run in a process of its own; its console output goes to a file beside the folder."""
    settings = {
        "output.base_dir": folder.parent,
        "output.run_name": folder.name,
        "output.keep_batches": "true",
        "magrpo.max_steps": STEPS,
        "magrpo.rollout_buffer_size": TASKS,
        "magrpo.num_generations": 4,
        "magrpo.max_new_tokens": 48,
        "magrpo.save_steps": 2,
        "magrpo.max_staleness": staleness,
        "magrpo.eval_num_samples": 2,
        "dataset.eval_split": "null",
        "resources.generator.kv_cache_mb": 64,
        "resources.deadlines.heartbeat_s": 20,
        "resources.deadlines.placement_s": 60,
    }
    overrides = [part for key, value in settings.items() for part in ("--override", f"{key}={value}")]
    command = [sys.executable, "-m", "marl_ray.train_magrpo", "--config", str(QUICKSTART)]
    with console_file(folder).open("w") as log:
        return subprocess.Popen(
            [*command, *overrides, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=os.environ | {"RAY_ADDRESS": address},
        )


def console_file(folder: Path) -> Path:
    return folder.with_suffix(".log")


def steps_done(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def wait_for_steps(process: subprocess.Popen, folder: Path, steps: int) -> bool:
    """Wait until `steps` steps have finished; return False if the run ends first. Raises TimeoutError."""
    end = time.monotonic() + RUN_S
    while process.poll() is None:
        if steps_done(folder) >= steps and "ready after" in console_file(folder).read_text():
            return True
        if time.monotonic() > end:
            raise TimeoutError(f"{steps} steps were not done in {RUN_S:g} s: {console_file(folder).read_text()}")
        time.sleep(0.05)
    return False


def inject(fault: Fault, cluster: RayCluster, rng: random.Random) -> str:
    """Kill the process or node, and return its description."""
    if fault.victim == "node":
        index = rng.randrange(len(cluster.workers))
        killed = len(cluster.kill(index))
        time.sleep(NODE_BACK_S)
        cluster.add()
        return f"node {index} with {killed} processes"
    candidates = list(find_processes(fault.victim, cluster))
    for process in rng.sample(candidates, len(candidates)):
        try:
            process.kill()
        except psutil.NoSuchProcess:  # it has ended, like a zygote's child
            continue
        return f"{fault.victim} {process.pid}"
    return f"no {fault.victim}: there was none"


def find_processes(kind: str, cluster: RayCluster) -> Iterator[psutil.Process]:
    """Yield the processes of a kind on all nodes."""
    for process in cluster.processes():
        try:
            title = process.cmdline()[:1]
            if kind == "zygote":
                parent = process.parent()
                if parent is not None and parent.cmdline()[:1] and parent.cmdline()[0].startswith(TITLES["sandbox"]):
                    yield process
            elif title and title[0].startswith(TITLES[kind]):
                yield process
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue


def wait_for_result(process: subprocess.Popen, folder: Path, begin: float, limit_s: float = RUN_S) -> RunResult:
    """Wait for a run and return its results. Raises RuntimeError with the console output if it fails."""
    code = process.wait(limit_s)
    text = console_file(folder).read_text()
    if code:
        raise RuntimeError(f"exit code {code}:\n{text}")
    return read_result(folder, time.monotonic() - begin)


def read_result(folder: Path, seconds: float) -> RunResult:
    """Return the results of a finished run."""
    rows = [without_times(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    files = sorted(folder.glob("models/*/*.safetensors")) + sorted(folder.glob("checkpoints/*/*/*.safetensors"))
    hashes = [f"{file.relative_to(folder)} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]
    return RunResult(rows, hashes, console_file(folder).read_text(), seconds)


def run(
    folder: Path, cluster: RayCluster, staleness: int, fault: Fault | None, rng: random.Random
) -> tuple[RunResult, str]:
    """Run once, with a fault or without; return the results and a description of the killed process."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    process = start(folder, cluster.address, staleness)
    try:
        killed = "nothing"
        if fault is not None and wait_for_steps(process, folder, fault.steps):
            time.sleep(fault.delay_s)
            killed = inject(fault, cluster, rng)
        return wait_for_result(process, folder, begin), killed
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def check_result(result: RunResult, folder: Path, reference: RunResult, staleness: int) -> None:
    """Raise AssertionError unless the results satisfy the conditions above."""
    from marl_ray.storage.batch_log import BatchLog

    if staleness == 0:
        assert result.rows == reference.rows, differences(result.rows, reference.rows)
        assert result.weights == reference.weights
    assert [row["step"] for row in result.rows] == list(range(1, STEPS + 1))
    assert max(row[f"agent_{i}/staleness_max"] for row in result.rows for i in (0, 1)) <= staleness
    log = BatchLog(folder / "batches")
    assert log.steps() == list(range(STEPS)), "every prompt sample is in exactly one batch"
    assert all(row["rollout/episodes"] == TASKS for row in result.rows)


def differences(some: list[dict], others: list[dict]) -> str:
    """Describe the first differences between two lists of rows."""
    return "; ".join(
        f"step {one['step']} {key}: {one.get(key)} != {other.get(key)}"
        for one, other in zip(some, others, strict=False)
        for key in one.keys() | other.keys()
        if one.get(key) != other.get(key)
    )[:600]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--staleness", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--victim", choices=VICTIMS, help="always kill this kind of process")
    parser.add_argument("--folder", type=Path, default=Path("fault_trials"))
    arguments = parser.parse_args()
    rng, failures = random.Random(arguments.seed), 0
    folder = arguments.folder.absolute()
    with ray_cluster(3) as cluster:
        reference, _ = run(folder / "reference", cluster, arguments.staleness, None, rng)
        print(f"reference: {reference.seconds:.0f} s", flush=True)
        for number in range(arguments.trials):
            fault = Fault.sample(rng)
            if arguments.victim:
                fault = Fault(arguments.victim, fault.steps, fault.delay_s)
            name = folder / f"trial_{number:02d}"
            try:
                result, killed = run(name, cluster, arguments.staleness, fault, rng)
                check_result(result, name, reference, arguments.staleness)
                outcome = f"passed, {result.seconds:.0f} s"
            except (AssertionError, RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
                failures += 1
                killed, outcome = str(fault), f"FAILED: {error}"
            print(
                f"trial {number:>2}: after step {fault.steps} + {fault.delay_s:.1f} s {killed}: {outcome}", flush=True
            )
    print(f"{arguments.trials - failures} of {arguments.trials} trials passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
