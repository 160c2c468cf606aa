"""Kill what a run cannot survive, at a random moment; see that it ends well, and go on with it.

    python -m tests.end_to_end.survival.ends --victim driver --trials 6
    python -m tests.end_to_end.survival.ends --victim gcs --on cluster

`driver` is the run's own process; `raylet` and `gcs` are Ray's, on the node where that runs. Whatever ends: no file is
half written, no process is left a little over a minute later, and the run that goes on, on a new Ray if the old one is
gone, leaves an undisturbed run's metrics and weights, bit for bit. Where Ray ended, the driver says so in one line.
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

from tests.end_to_end.survival.cluster import Nodes, nodes
from tests.end_to_end.survival.trials import STEPS, TITLES, Left, check, left, said, start, steps_done, wait

MOMENTS = ("start", "rollout", "update", "checkpoint", "export")
NAMES = {"raylet": "raylet", "gcs": "gcs_server"}
SAYS = {"raylet": "(raylet) is gone", "gcs": "(gcs_server) has not answered"}
"""What the driver's last line has."""
NOTICED_S = 90.0
GONE_S = 90.0
"""Ray's two agents of a node wait for 60 s to tell its GCS, which is gone, that the raylet is gone too."""
RUN_S = 400.0


@dataclass(frozen=True)
class End:
    """`victim` is killed `delay_s` after the moment has come; update and rollout begin when `steps` are done."""

    victim: str
    moment: str
    steps: int
    delay_s: float

    @classmethod
    def draw(cls, victim: str, rng: random.Random) -> End:
        moment = rng.choice(MOMENTS) if victim == "driver" else rng.choice(("rollout", "update"))
        longest = {"start": 20.0, "rollout": 0.5, "update": 1.5, "checkpoint": 0.1, "export": 0.1}[moment]
        return cls(victim, moment, rng.randrange(1, STEPS - 2), rng.uniform(0.0, longest))

    def come(self, process: subprocess.Popen, folder: Path) -> None:
        """Wait for the moment. A run that has ended before is none to go on with: RuntimeError."""
        if self.moment == "checkpoint":
            _until(lambda: any(folder.glob("checkpoints/.*")), process)
        elif self.moment == "export":
            _until(lambda: any(folder.glob("models/.*")), process)
        elif self.moment != "start" and not wait(process, folder, self.steps):
            raise RuntimeError(f"the run ended too early: {said(folder).read_text()}")
        time.sleep(self.delay_s)


def _until(holds: Callable[[], bool], process: subprocess.Popen) -> None:
    until = time.monotonic() + RUN_S
    while process.poll() is None and not holds():
        if time.monotonic() > until:
            raise TimeoutError("the moment did not come")
        time.sleep(0.002)


def family(process: subprocess.Popen, cluster: Nodes | None) -> list[psutil.Process]:
    """All processes of a run: the driver's, with a Ray of its own if it has one, and its actors' on a cluster."""
    found = psutil.Process(process.pid).children(recursive=True)
    for other in cluster.processes() if cluster else []:
        if _words(other).startswith(tuple(TITLES.values())):
            found += [other, *other.children(recursive=True)]
    return list(dict.fromkeys(found))


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()[:1])
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def strike(end: End, process: subprocess.Popen, cluster: Nodes | None) -> None:
    """Kill the victim."""
    if end.victim == "driver":
        process.kill()
    elif cluster is not None:
        cluster.of_head(NAMES[end.victim]).kill()
    else:
        of_ray = psutil.Process(process.pid).children(recursive=True)
        next(p for p in of_ray if _words(p).endswith(f"/{NAMES[end.victim]}")).kill()


def check_end(end: End, process: subprocess.Popen, folder: Path, of_run: list[psutil.Process]) -> float:
    """The run ends in time and says why, its files are whole, nothing is left; the seconds. Raises AssertionError."""
    begun = time.monotonic()
    code = process.wait(NOTICED_S)
    seconds, text = time.monotonic() - begun, said(folder).read_text()
    if end.victim != "driver":
        assert code == 1, f"exit code {code}: {text}"
        assert "Traceback" not in text, text
        last = text.strip().splitlines()[-1]
        assert last.startswith("error: "), text
        assert SAYS[end.victim] in last, text
        assert f"--resume {folder}" in last, text
    _, alive = psutil.wait_procs(of_run, timeout=GONE_S)
    alive = [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    assert not alive, f"left over: {[(p.pid, _words(p)) for p in alive]}"
    check_files(folder)
    return seconds


def check_files(folder: Path) -> None:
    """What has its final name is whole. Raises what reading it raises."""
    from safetensors import safe_open

    from marl_ray.storage.checkpoints import read_state
    from marl_ray.storage.run_folder import RunFolder

    there = RunFolder(folder)
    for path in there.checkpoints.all():
        read_state(path)
    for weights in [*folder.glob("checkpoints/step_*/*/*.safetensors"), *folder.glob("models/agent_*/*.safetensors")]:
        with safe_open(weights, "pt") as file:
            assert [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118
    for step in there.log.steps():
        assert there.log.read(step).step == step
    for name in ("metrics.jsonl", "episodes.jsonl"):
        lines = (folder / name).read_text().split("\n") if (folder / name).exists() else []
        for line in lines[:-1]:  # after the last end of a line there may be the beginning of a row
            json.loads(line)


@contextmanager
def ray_on(where: str) -> Iterator[Nodes | None]:
    """A cluster with room for one run; None for `local`, where each run has a Ray of its own."""
    if where == "local":
        yield None
    else:
        with nodes(1) as cluster:
            yield cluster


def trial(end: End, folder: Path, undisturbed: Left, where: str) -> str:
    """One run that is ended, and goes on. Returns what to say of it; raises what is wrong with it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with ray_on(where) as cluster:
        address = cluster.address if cluster else "local"
        process = start(folder, address, 0)
        try:
            end.come(process, folder)
            of_run, done = family(process, cluster), steps_done(folder)
            strike(end, process, cluster)
            seconds = check_end(end, process, folder, of_run)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if end.victim == "driver":
            found = go_on(folder, address)
    if end.victim != "driver":
        with ray_on(where) as cluster:
            found = go_on(folder, cluster.address if cluster else "local")
    check(found, folder, undisturbed, 0)
    hidden = list(folder.rglob(".*"))
    assert not hidden, f"left over: {hidden}"
    return f"after {done} steps; ended {seconds:.0f} s later; went on in {found.seconds:.0f} s"


def go_on(folder: Path, address: str) -> Left:
    """The run once more, to its end: from where it stands, or from the beginning if it had not begun."""
    begun = time.monotonic()
    process = start(folder, address, 0, "--override", "output.resume=auto")
    try:
        return left(process, folder, begun)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--victim", choices=("driver", *NAMES), default="driver")
    parser.add_argument("--moment", choices=MOMENTS, help="always this one")
    parser.add_argument("--on", choices=("local", "cluster"), default="local")
    parser.add_argument("--folder", type=Path, default=Path("survival"))
    arguments = parser.parse_args()
    rng, failures, folder = random.Random(arguments.seed), 0, arguments.folder.absolute()
    (folder / "undisturbed").parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    undisturbed = left(start(folder / "undisturbed", "local", 0), folder / "undisturbed", begun)
    print(f"undisturbed: {undisturbed.seconds:.0f} s", flush=True)
    for number in range(arguments.trials):
        end = End.draw(arguments.victim, rng)
        if arguments.moment:
            end = End(end.victim, arguments.moment, end.steps, end.delay_s)
        try:
            verdict = trial(end, folder / f"{end.victim}_{number:02d}", undisturbed, arguments.on)
        except (AssertionError, RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
            failures += 1
            verdict = f"FAILED: {error}"
        print(f"{end.victim} {number:>2}, {end.moment} + {end.delay_s:.2f} s: {verdict}", flush=True)
    print(f"{arguments.trials - failures} of {arguments.trials} as they should be")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
