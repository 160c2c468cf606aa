"""Kill a process without which a run cannot continue, check how the run ends, and resume it.

    python -m tests.end_to_end.faults.driver_faults --victim driver --trials 6
    python -m tests.end_to_end.faults.driver_faults --victim gcs --on cluster

`driver` is the run's own process; `raylet` and `gcs` are processes of Ray on the driver's node. In all cases no file is
incomplete, no process is left a little over a minute later, and the resumed run, on a new Ray instance if necessary,
has the metrics and weights of a run without faults, bitwise. If Ray ended, the driver reports that in one line.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.end_to_end.faults.actor_faults import (
    STEPS,
    TITLES,
    RunResult,
    check_result,
    console_file,
    start,
    steps_done,
    wait_for_result,
    wait_for_steps,
)
from tests.end_to_end.faults.ray_cluster import RayCluster, ray_cluster

MOMENTS = ("start", "rollout", "update", "checkpoint", "export")
NAMES = {"raylet": "raylet", "gcs": "gcs_server"}
MESSAGES = {"raylet": "(raylet) is gone", "gcs": "(gcs_server) has not answered"}
"""Part of the driver's last line."""
DETECTION_S = 90.0
CLEANUP_S = 90.0
"""Two agents of Ray per node try for 60 s to report the lost raylet to the lost GCS."""
RUN_S = 400.0


@dataclass(frozen=True)
class DriverFault:
    """The process to kill, `delay_s` seconds after a moment of the run. Rollout and update begin after `steps`
    steps."""

    victim: str
    moment: str
    steps: int
    delay_s: float

    @classmethod
    def sample(cls, victim: str, rng: random.Random) -> DriverFault:
        moment = rng.choice(MOMENTS) if victim == "driver" else rng.choice(("rollout", "update"))
        max_delay_s = {"start": 20.0, "rollout": 0.5, "update": 1.5, "checkpoint": 0.1, "export": 0.1}[moment]
        return cls(victim, moment, rng.randrange(1, STEPS - 2), rng.uniform(0.0, max_delay_s))

    def wait(self, process: subprocess.Popen, folder: Path) -> None:
        """Wait for the moment. Raises RuntimeError if the run ends first."""
        if self.moment == "checkpoint":
            _wait_until(lambda: any(folder.glob("checkpoints/.*")), process)
        elif self.moment == "export":
            _wait_until(lambda: any(folder.glob("models/.*")), process)
        elif self.moment != "start" and not wait_for_steps(process, folder, self.steps):
            raise RuntimeError(f"the run ended too early: {console_file(folder).read_text()}")
        time.sleep(self.delay_s)


def _wait_until(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    end = time.monotonic() + RUN_S
    while process.poll() is None and not condition():
        if time.monotonic() > end:
            raise TimeoutError("the moment did not come")
        time.sleep(0.002)


def run_processes(process: subprocess.Popen, cluster: RayCluster | None) -> list[psutil.Process]:
    """Return all processes of a run: children of the driver, including a local Ray, and its actors on a cluster."""
    processes = psutil.Process(process.pid).children(recursive=True)
    for other in cluster.processes() if cluster else []:
        if _title(other).startswith(tuple(TITLES.values())):
            processes += [other, *other.children(recursive=True)]
    return list(dict.fromkeys(processes))


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()[:1])
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def inject(fault: DriverFault, process: subprocess.Popen, cluster: RayCluster | None) -> None:
    """Kill the process."""
    if fault.victim == "driver":
        process.kill()
    elif cluster is not None:
        cluster.head_process(NAMES[fault.victim]).kill()
    else:
        children = psutil.Process(process.pid).children(recursive=True)
        next(p for p in children if _title(p).endswith(f"/{NAMES[fault.victim]}")).kill()


def check_end(fault: DriverFault, process: subprocess.Popen, folder: Path, processes: list[psutil.Process]) -> float:
    """Check that the run ends in time with a message, complete files and no leftover processes. Returns the seconds
    until its end. Raises AssertionError."""
    begin = time.monotonic()
    code = process.wait(DETECTION_S)
    seconds, text = time.monotonic() - begin, console_file(folder).read_text()
    if fault.victim != "driver":
        assert code == 1, f"exit code {code}: {text}"
        assert "Traceback" not in text, text
        last = text.strip().splitlines()[-1]
        assert last.startswith("error: "), text
        assert MESSAGES[fault.victim] in last, text
        assert f"--resume {folder}" in last, text
    _, alive = psutil.wait_procs(processes, timeout=CLEANUP_S)
    alive = [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    assert not alive, f"leftover processes: {[(p.pid, _title(p)) for p in alive]}"
    check_files(folder)
    return seconds


def check_files(folder: Path) -> None:
    """Read all files with a final name. Raises the error of an incomplete file."""
    from safetensors import safe_open

    from marl_ray.storage.checkpoints import read_state
    from marl_ray.storage.run_folder import RunFolder

    run_folder = RunFolder(folder)
    for path in run_folder.checkpoints.all():
        read_state(path)
    for weights in [*folder.glob("checkpoints/step_*/*/*.safetensors"), *folder.glob("models/agent_*/*.safetensors")]:
        with safe_open(weights, "pt") as file:
            assert [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118
    for step in run_folder.log.steps():
        assert run_folder.log.read(step).step == step
    for name in ("metrics.jsonl", "episodes.jsonl"):
        lines = (folder / name).read_text().split("\n") if (folder / name).exists() else []
        for line in lines[:-1]:  # the last line may be incomplete
            json.loads(line)


@contextmanager
def ray_on(where: str) -> Iterator[RayCluster | None]:
    """Run a cluster with resources for one run; None for `local`, where each run starts a local Ray instance."""
    if where == "local":
        yield None
    else:
        with ray_cluster(1) as cluster:
            yield cluster


def trial(fault: DriverFault, folder: Path, reference: RunResult, where: str) -> str:
    """Interrupt and resume one run. Returns a description; raises an error for a wrong result."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with ray_on(where) as cluster:
        address = cluster.address if cluster else "local"
        process = start(folder, address, 0)
        try:
            fault.wait(process, folder)
            processes, done = run_processes(process, cluster), steps_done(folder)
            inject(fault, process, cluster)
            seconds = check_end(fault, process, folder, processes)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if fault.victim == "driver":
            result = resume(folder, address)
    if fault.victim != "driver":
        with ray_on(where) as cluster:
            result = resume(folder, cluster.address if cluster else "local")
    check_result(result, folder, reference, 0)
    hidden = list(folder.rglob(".*"))
    assert not hidden, f"leftover files: {hidden}"
    return f"after {done} steps; ended {seconds:.0f} s later; resumed in {result.seconds:.0f} s"


def resume(folder: Path, address: str) -> RunResult:
    """Resume the run, or start it if it had not begun, and wait for its end."""
    begin = time.monotonic()
    process = start(folder, address, 0, "--override", "output.resume=auto")
    try:
        return wait_for_result(process, folder, begin)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--victim", choices=("driver", *NAMES), default="driver")
    parser.add_argument("--moment", choices=MOMENTS, help="always at this moment")
    parser.add_argument("--on", choices=("local", "cluster"), default="local")
    parser.add_argument("--folder", type=Path, default=Path("fault_trials"))
    arguments = parser.parse_args()
    rng, failures, folder = random.Random(arguments.seed), 0, arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    reference = wait_for_result(start(folder / "reference", "local", 0), folder / "reference", begin)
    print(f"reference: {reference.seconds:.0f} s", flush=True)
    for number in range(arguments.trials):
        fault = DriverFault.sample(arguments.victim, rng)
        if arguments.moment:
            fault = DriverFault(fault.victim, arguments.moment, fault.steps, fault.delay_s)
        try:
            outcome = trial(fault, folder / f"{fault.victim}_{number:02d}", reference, arguments.on)
        except (AssertionError, RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
            failures += 1
            outcome = f"FAILED: {error}"
        print(f"{fault.victim} {number:>2}, {fault.moment} + {fault.delay_s:.2f} s: {outcome}", flush=True)
    print(f"{arguments.trials - failures} of {arguments.trials} trials passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
