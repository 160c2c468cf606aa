"""Signals, lost processes, listening ports, and `ray job submit`."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from marl_ray.storage.run_folder import RunFolder
from tests.end_to_end.helpers import ONE_AGENT, QUICK, command, environment, rows
from tests.factories import ROOT

pytestmark = pytest.mark.slow

RAY = Path(sys.executable).with_name("ray")
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
TINY = ["magrpo.rollout_buffer_size=2", "magrpo.num_generations=2", "magrpo.eval_num_samples=1"]


def read_until(process: subprocess.Popen, matches: Callable[[str], bool]) -> list[str]:
    """Return the lines of standard error up to the first one that matches."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if matches(line):
            return lines
    raise AssertionError("the run ended early:\n" + "".join(lines))


def run(base: Path, children: list[subprocess.Popen], *overrides: str) -> subprocess.Popen:
    """Start a long run whose temporary folder is `base`/t."""
    (base / "t").mkdir()
    settings = [f"output.base_dir={base}", "output.run_name=r", "magrpo.max_steps=5000", "magrpo.num_train_epochs=1000"]
    process = subprocess.Popen(
        command(*QUICK, *TINY, *settings, "dataset.eval_split=null", *overrides),
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | {"TMPDIR": str(base / "t")},
        cwd=ROOT,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        start_new_session=True,
    )
    children.append(process)
    return process


def remaining_lines(process: subprocess.Popen, seconds: float = 120) -> list[str]:
    """Return the lines of standard error until the run ends; kill it after `seconds`."""
    assert process.stderr is not None
    deadline = threading.Timer(seconds, process.kill)
    deadline.start()
    lines = process.stderr.read().splitlines()
    deadline.cancel()
    process.wait(timeout=30)
    return lines


def assert_ended(family: list[psutil.Process]) -> None:
    """Check that no process of a run is still running."""
    _, alive = psutil.wait_procs(family, timeout=20)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def assert_no_leftovers(temporary: Path) -> None:
    """Check that the temporary folder has no files of a run."""
    leftovers = {path.name for path in temporary.rglob("*") if path.is_socket() or path.name.startswith("vllm")}
    assert leftovers == set()
    assert list((temporary / "ray").iterdir()) == []


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A short path, because Ray puts sockets below it, whose paths are limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="mr") as folder:
        yield Path(folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_during_startup_ends_the_run_with_one_line_and_no_leftovers(
    number: signal.Signals, short_path: Path, children: list[subprocess.Popen]
) -> None:
    process = run(short_path, children)
    read_until(process, lambda line: line.startswith("starting 2 generators"))
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    assert remaining_lines(process) == ["stopped before the first step"]
    assert process.returncode == CODES[number]
    assert_ended(family)
    assert_no_leftovers(short_path / "t")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_ends_a_run_with_a_complete_checkpoint(
    number: signal.Signals, short_path: Path, children: list[subprocess.Popen]
) -> None:
    process = run(short_path, children, *(ONE_AGENT if number == signal.SIGTERM else ()), "magrpo.save_steps=1")
    read_until(process, lambda line: line.startswith("step    3/"))
    family = psutil.Process(process.pid).children(recursive=True)
    listening = [
        c.laddr.ip
        for p in [psutil.Process(process.pid), *family]
        for c in _connections(p)
        if c.status == psutil.CONN_LISTEN
    ]
    assert listening, "Ray's own servers listen"
    assert set(listening) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    process.send_signal(number)
    lines = [line for line in remaining_lines(process) if not line.startswith("step ")]
    assert process.returncode == CODES[number]
    *before, last = lines
    # The signal may meet a checkpoint that is being written.
    assert all(re.fullmatch(r"stopping when the checkpoint of step \d is written; .*", line) for line in before), lines
    assert len(before) <= 1, lines
    assert re.fullmatch(r"stopped at step \d+; --resume \S+ continues from step \d+", last)
    assert_ended(family)
    assert_no_leftovers(short_path / "t")
    path, state = RunFolder(short_path / "r").checkpoints.latest()
    assert state.step >= 2
    assert (path / "agent_0" / "model.safetensors").stat().st_size > 0


@pytest.mark.parametrize(
    ("number", "to_ray", "code"), [(signal.SIGHUP, False, 129), (signal.SIGTERM, True, 143)], ids=["terminal", "job"]
)
def test_a_signal_to_all_processes_is_a_stop(
    number: signal.Signals, to_ray: bool, code: int, short_path: Path, children: list[subprocess.Popen]
) -> None:
    """Signal the process group of the run, as a closed terminal does, or all processes of a job, as Slurm does."""
    process = run(short_path, children, *ONE_AGENT)
    read_until(process, lambda line: line.startswith("step    2/"))
    family = psutil.Process(process.pid).children(recursive=True)
    for member in family if to_ray else ():
        with contextlib.suppress(psutil.NoSuchProcess):
            member.send_signal(number)
    os.killpg(process.pid, number)
    *others, last = [line for line in remaining_lines(process) if not line.startswith("step ")]
    assert process.returncode == code
    assert re.fullmatch(r"stopped at step \d+; --resume \S+ continues from step [1-9]\d*", last)
    assert all(re.match(r"warning: .* is lost: ", line) for line in others), others
    assert_ended(family)
    assert not (short_path / "r" / "error.txt").exists()


def test_a_lost_raylet_is_named_without_ray_s_own_output(short_path: Path, children: list[subprocess.Popen]) -> None:
    process = run(short_path, children, *ONE_AGENT)
    read_until(process, lambda line: line.startswith("step    1/"))
    family = psutil.Process(process.pid).children(recursive=True)
    next(p for p in family if "raylet/raylet" in " ".join(_cmdline(p)[:1])).kill()
    *others, last = [line for line in remaining_lines(process) if not line.startswith("step ")]
    assert process.returncode == 1
    assert re.fullmatch(r"error: Ray's process on node 127\.0\.0\.1 \(raylet\) is gone.*; --resume \S+ continues", last)
    assert all(re.match(r"warning: (agent \d \w+( \d)?|sandbox \d) is lost: ", line) for line in others), others
    assert_ended(family)


def test_an_actor_without_restarts_left_is_named(tmp_path: Path, children: list[subprocess.Popen]) -> None:
    overrides = [f"output.base_dir={tmp_path}", "magrpo.max_steps=5000", "magrpo.num_train_epochs=1000"]
    overrides.append("resources.generator.max_restarts=0")
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(
            command(*QUICK, *TINY, *ONE_AGENT, *overrides),
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=ROOT,
        )
    children.append(process)
    read_until(process, lambda line: line.startswith("step    2/"))
    family = psutil.Process(process.pid).children(recursive=True)
    next(p for p in family if any("ray::GenerationActor" in part for part in _cmdline(p))).kill()
    assert process.stderr is not None
    remaining = process.stderr.read()
    assert process.wait(timeout=60) == 1
    last = remaining.strip().splitlines()[-1]
    assert re.match(r"error: agent 0 generator 0 is lost for good \(resources\.generator\.max_restarts .*died", last)
    assert last.endswith("--resume continues the run")
    assert (tmp_path / "out").read_text() == "", "none of Ray's own output"
    assert_ended(family)


def _connections(process: psutil.Process) -> list:
    try:
        return process.net_connections(kind="inet")
    except psutil.NoSuchProcess:
        return []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def head_node() -> Iterator[str]:
    """The address of the job server of a Ray head."""
    dashboard, port = free_port(), free_port()
    folder = tempfile.mkdtemp(prefix="mr")  # a short path, as above
    variables = environment() | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled"}
    variables["no_proxy"] = "127.0.0.1"
    variables["PATH"] = f"{RAY.parent}:{os.environ['PATH']}"  # jobs use the `python` of the head's PATH
    start = [RAY, "start", "--head", f"--port={port}", "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1"]
    start += [f"--dashboard-port={dashboard}", "--num-cpus=4", "--disable-usage-stats"]
    start += ["--dashboard-agent-listen-port=0", f"--temp-dir={folder}"]
    before = {p.pid for p in psutil.process_iter()}
    started = subprocess.run(start, env=variables, capture_output=True, text=True, timeout=120)
    assert started.returncode == 0, started.stdout + started.stderr
    new = [p for p in psutil.process_iter() if p.pid not in before]
    yield f"http://127.0.0.1:{dashboard}"
    # `ray stop` would end every Ray instance of this machine.
    cluster = {p for p in new if folder in " ".join(_cmdline(p))}
    cluster |= {child for p in list(cluster) if p.is_running() for child in p.children(recursive=True)}
    for p in cluster:
        if p.is_running():
            p.kill()
    psutil.wait_procs(cluster, timeout=30)
    shutil.rmtree(folder)


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def test_a_run_succeeds_as_a_ray_job(head_node: str, tmp_path: Path) -> None:
    job = ["python", "-m", "marl_ray.train_magrpo", "--config", "configs/quickstart.yaml", "--override", *TINY]
    job += ["magrpo.max_steps=2", f"output.base_dir={tmp_path}", "output.run_name=job"]
    submit = [RAY, "job", "submit", "--address", head_node, "--working-dir", "."]
    result = subprocess.run(
        [*submit, "--", *job],
        env=environment() | {"no_proxy": "127.0.0.1"},  # Ray's own client asks the proxy
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    assert "succeeded" in result.stdout
    assert "step 2/2" in result.stdout
    assert [r["step"] for r in rows(tmp_path / "job", "step")] == [1, 2]
