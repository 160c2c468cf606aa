"""Kill something of a run, again and again, and compare what comes of it with an undisturbed run.

    python -m tests.end_to_end.survival.trials --trials 20 --staleness 0 --seed 1
    python -m tests.end_to_end.survival.trials --trials 20 --staleness 2

A trial is a run of two tiny agents on a cluster of three worker nodes. At a random moment a random one is killed of:
generator, learner, sandbox worker, the fork server of a sandbox, a whole node (which comes back a little later). With
staleness 0 metrics and weights must be those of the undisturbed run, bit for bit; otherwise the run must end well, with
every draw in exactly one batch and no token staler than the bound.
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

from tests.end_to_end.conftest import timeless
from tests.end_to_end.survival.cluster import Nodes, nodes

ROOT = Path(__file__).parent.parent.parent.parent
VICTIMS = ("generator", "learner", "sandbox", "zygote", "node")
TITLES = {"generator": "ray::GenerationActor", "learner": "ray::LearnerActor", "sandbox": "ray::SandboxWorker"}
STEPS = 8
TASKS = 2
RUN_S = 400.0
NODE_BACK_S = 3.0


@dataclass(frozen=True)
class Trial:
    """What is killed: `victim`, once `steps` steps are done and then `delay_s` later."""

    victim: str
    steps: int
    delay_s: float

    @classmethod
    def draw(cls, rng: random.Random) -> Trial:
        return cls(rng.choice(VICTIMS), rng.randrange(STEPS - 2), rng.uniform(0.0, 1.0))


@dataclass(frozen=True)
class Left:
    """What a run leaves: its rows without times, its weights' hashes, and what it said."""

    rows: list[dict]
    weights: list[str]
    said: str
    seconds: float


def start(folder: Path, address: str, staleness: int, *more: str) -> subprocess.Popen:
    """A run in a process of its own; its words go to a file beside the folder."""
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
    command = [sys.executable, "-m", "marl_ray.train_magrpo", "--config", str(ROOT / "configs" / "quickstart.yaml")]
    with said(folder).open("w") as log:
        return subprocess.Popen(
            [*command, *overrides, *more],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=os.environ | {"RAY_ADDRESS": address},
        )


def said(folder: Path) -> Path:
    return folder.with_suffix(".log")


def steps_done(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def wait(process: subprocess.Popen, folder: Path, steps: int) -> bool:
    """Until so many steps are done; False where the run ends before. Raises TimeoutError."""
    until = time.monotonic() + RUN_S
    while process.poll() is None:
        if steps_done(folder) >= steps and "ready after" in said(folder).read_text():
            return True
        if time.monotonic() > until:
            raise TimeoutError(f"{steps} steps were not done in {RUN_S:g} s: {said(folder).read_text()}")
        time.sleep(0.05)
    return False


def strike(trial: Trial, cluster: Nodes, rng: random.Random) -> str:
    """Kill; returns what."""
    if trial.victim == "node":
        index = rng.randrange(len(cluster.workers))
        gone = len(cluster.kill(index))
        time.sleep(NODE_BACK_S)
        cluster.add()
        return f"node {index} with {gone} processes"
    found = list(victims(trial.victim, cluster))
    for victim in rng.sample(found, len(found)):
        try:
            victim.kill()
        except psutil.NoSuchProcess:  # it has ended by itself, as a fork server's child does
            continue
        return f"{trial.victim} {victim.pid}"
    return f"no {trial.victim}: there was none"


def victims(kind: str, cluster: Nodes) -> Iterator[psutil.Process]:
    """The processes of a kind, on all nodes."""
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


def left(process: subprocess.Popen, folder: Path, begun: float) -> Left:
    """Of a run that must end well. Raises RuntimeError with its words."""
    code = process.wait(RUN_S)
    text = said(folder).read_text()
    if code:
        raise RuntimeError(f"exit code {code}:\n{text}")
    kept = [timeless(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    files = sorted(folder.glob("models/*/*.safetensors")) + sorted(folder.glob("checkpoints/*/*/*.safetensors"))
    hashes = [f"{file.relative_to(folder)} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]
    return Left(kept, hashes, text, time.monotonic() - begun)


def run(folder: Path, cluster: Nodes, staleness: int, trial: Trial | None, rng: random.Random) -> tuple[Left, str]:
    """One run, disturbed or not; and what was killed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    process = start(folder, cluster.address, staleness)
    try:
        struck = "nothing"
        if trial is not None and wait(process, folder, trial.steps):
            time.sleep(trial.delay_s)
            struck = strike(trial, cluster, rng)
        return left(process, folder, begun), struck
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def check(found: Left, folder: Path, undisturbed: Left, staleness: int) -> None:
    """Raises AssertionError for a run that is not what it should be."""
    from marl_ray.storage.batch_log import BatchLog

    if staleness == 0:
        assert found.rows == undisturbed.rows, differences(found.rows, undisturbed.rows)
        assert found.weights == undisturbed.weights
    assert [row["step"] for row in found.rows] == list(range(1, STEPS + 1))
    assert max(row[f"agent_{i}/staleness_max"] for row in found.rows for i in (0, 1)) <= staleness
    log = BatchLog(folder / "batches")
    assert log.steps() == list(range(STEPS)), "every draw in exactly one batch"
    assert all(row["rollout/episodes"] == TASKS for row in found.rows)


def differences(some: list[dict], others: list[dict]) -> str:
    """The first few."""
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
    parser.add_argument("--victim", choices=VICTIMS, help="always this one")
    parser.add_argument("--folder", type=Path, default=Path("survival"))
    arguments = parser.parse_args()
    rng, failures = random.Random(arguments.seed), 0
    folder = arguments.folder.absolute()
    with nodes(3) as cluster:
        undisturbed, _ = run(folder / "undisturbed", cluster, arguments.staleness, None, rng)
        print(f"undisturbed: {undisturbed.seconds:.0f} s", flush=True)
        for number in range(arguments.trials):
            trial = Trial.draw(rng)
            if arguments.victim:
                trial = Trial(arguments.victim, trial.steps, trial.delay_s)
            name = folder / f"trial_{number:02d}"
            try:
                found, struck = run(name, cluster, arguments.staleness, trial, rng)
                check(found, name, undisturbed, arguments.staleness)
                verdict = f"as it should be, {found.seconds:.0f} s"
            except (AssertionError, RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
                failures += 1
                struck, verdict = str(trial), f"FAILED: {error}"
            print(
                f"trial {number:>2}: after step {trial.steps} + {trial.delay_s:.1f} s {struck}: {verdict}", flush=True
            )
    print(f"{arguments.trials - failures} of {arguments.trials} as they should be")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
