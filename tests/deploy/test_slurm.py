"""deploy/slurm.sbatch with stand-ins for srun, scontrol, wait_for_nodes.py and the training."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.deploy.helpers import CONFIG, clean_environment, stand_in
from tests.factories import ROOT

# Ends when all job steps have reached `ray start`.
JOINED = """steps=$(($3 > 1 ? 2 : 1)); for _ in {1..500}; do
[ "$(cat "$NOTES/pids" 2>/dev/null | wc -l)" -ge $steps ] && exit 0; sleep 0.01; done; exit 1"""


def slurm(
    bin_dir: Path,
    *arguments: str,
    nodes: int = 2,
    srun: str = "exec sleep 60",
    waiting: str = JOINED,
    training: str = "exit 0",
    **variables: str,
) -> subprocess.Popen[str]:
    """Start slurm.sbatch with a simulated allocation.

    The stand-ins record their arguments. `srun` runs instead of `ray start`, `waiting` instead of wait_for_nodes.py,
    and `training` instead of the training.
    """
    log = bin_dir.parent
    hosts = "\n".join(f"echo n{i + 1}" for i in range(nodes))
    stand_in(bin_dir, "scontrol", f'if [ "$1" = requeue ]; then echo "$2" >> \'{log}/requeued\'; exit; fi\n{hosts}')
    stand_in(
        bin_dir,
        "srun",
        f"""printf '%s\\n' "$*" >> '{log}/srun.log'
case "$*" in *hostname*) echo 'fe80::1 10.0.0.7 172.17.0.1'; exit ;; esac
while [ "$1" != env ]; do shift; done
while [ "$1" != ray ]; do prefix+=("$1"); shift; done
"${{prefix[@]}}" env >> '{log}/ray.env'
echo $$ >> '{log}/pids'
{srun}""",
    )
    stand_in(
        bin_dir,
        "python",
        f"""[ "$1" = -c ] && exec '{sys.executable}' "$@"
printf '%s|%s|%s\\n' "$RAY_ADDRESS" "$RAY_AUTH_MODE" "$*" >> '{log}/python.log'
case "$*" in *wait_for_nodes*) {waiting} ;; esac
{training}""",
    )
    stand_in(bin_dir, "ray", "exit 9")
    allocation = {
        "SLURM_JOB_ID": "31337",
        "SLURM_JOB_NODELIST": f"n[1-{nodes}]",
        "SLURM_SUBMIT_DIR": str(ROOT),
        "SLURM_CPUS_PER_TASK": "16",
        "SLURM_GPUS_ON_NODE": "4",
        "VENV": "/nonexistent",
        "NOTES": str(log),
    }
    return subprocess.Popen(
        ["bash", ROOT / "deploy" / "slurm.sbatch", *arguments],
        cwd=bin_dir.parent,
        env=clean_environment(bin_dir, **(allocation | variables)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(job: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = job.communicate(timeout=20)
    return job.returncode, output


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_slurm_starts_head_and_workers_trains_and_stops_ray(bin_dir: Path, tmp_path: Path) -> None:
    status, output = finish(slurm(bin_dir, "magrpo", CONFIG, "--override", "seed=1", nodes=3))
    assert status == 0, output
    _, head, workers = lines(tmp_path / "srun.log")
    address = "10.0.0.7:21337"  # the first IPv4 address, and a port derived from the job id
    assert "--overlap" in head
    assert "-w n1" in head
    assert "ray start --head --node-ip-address=10.0.0.7 --port=21337 --include-dashboard=false" in head
    assert "--nodes=2 --ntasks=2 --ntasks-per-node=1 -x n1" in workers
    assert f"ray start --address={address}" in workers
    for step in (head, workers):
        assert "--num-cpus=16 --num-gpus=4" in step
        assert step.endswith("--block")
    assert lines(tmp_path / "python.log") == [
        f"{address}|token|deploy/wait_for_nodes.py {address} 1 300",
        f"{address}|token|deploy/wait_for_nodes.py {address} 3 300",
        f"{address}|token|-m marl_ray.train_magrpo --config {CONFIG} --override seed=1",
    ]
    assert not any(alive(int(pid)) for pid in lines(tmp_path / "pids"))


def test_slurm_on_one_node_starts_only_a_head(bin_dir: Path, tmp_path: Path) -> None:
    status, output = finish(slurm(bin_dir, "grpo", "--resume", "/shared/runs/a", nodes=1, SLURM_GPUS_ON_NODE=""))
    assert status == 0, output
    assert len(lines(tmp_path / "srun.log")) == 2
    assert "--num-gpus=0" in lines(tmp_path / "srun.log")[1]
    assert lines(tmp_path / "python.log")[-1].endswith("-m marl_ray.train_grpo --resume /shared/runs/a")


def test_slurm_exits_with_the_exit_code_of_the_training(bin_dir: Path, tmp_path: Path) -> None:
    status, _ = finish(slurm(bin_dir, "magrpo", CONFIG, training="exit 7"))
    assert status == 7
    assert not any(alive(int(pid)) for pid in lines(tmp_path / "pids"))


def test_slurm_does_not_train_when_ray_start_fails(bin_dir: Path, tmp_path: Path) -> None:
    job = slurm(bin_dir, "magrpo", CONFIG, srun="exit 3", waiting="exec sleep 60")
    status, output = finish(job)
    assert status != 0
    assert "status 3" in output
    assert not any("train_magrpo" in line for line in lines(tmp_path / "python.log"))


def test_slurm_does_not_train_when_nodes_are_missing(bin_dir: Path, tmp_path: Path) -> None:
    status, _ = finish(slurm(bin_dir, "magrpo", CONFIG, waiting="exit 1"))
    assert status == 1
    assert not any("train_magrpo" in line for line in lines(tmp_path / "python.log"))


def stop(bin_dir: Path, how: signal.Signals, **variables: str) -> tuple[int, str]:
    """Send a signal to a job during its training. Return exit code and output."""
    log = bin_dir.parent
    saving = f"trap 'sleep 0.3; touch {log}/saved; exit 130' TERM; touch {log}/started"
    saving += "; while true; do sleep 0.05; done"
    job = slurm(bin_dir, "magrpo", CONFIG, training=saving, **variables)
    end = time.monotonic() + 15
    while not (log / "started").exists() and time.monotonic() < end:
        time.sleep(0.02)
    job.send_signal(how)
    return finish(job)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGUSR1])
def test_slurm_forwards_the_signal_and_waits_for_the_training(
    bin_dir: Path, tmp_path: Path, how: signal.Signals
) -> None:
    status, output = stop(bin_dir, how)
    assert status == 130, output
    assert (tmp_path / "saved").exists()
    assert not any(alive(int(pid)) for pid in lines(tmp_path / "pids"))
    assert lines(tmp_path / "requeued") == []


def test_slurm_requeues_a_job_that_ran_out_of_time(bin_dir: Path, tmp_path: Path) -> None:
    assert "#SBATCH --signal=B:USR1@" in (ROOT / "deploy" / "slurm.sbatch").read_text()
    status, output = stop(bin_dir, signal.SIGUSR1, REQUEUE="yes")
    assert status == 130
    assert "out of time, job requeued" in output
    assert lines(tmp_path / "requeued") == ["31337"]


def test_slurm_does_not_requeue_a_cancelled_job(bin_dir: Path, tmp_path: Path) -> None:
    stop(bin_dir, signal.SIGTERM, REQUEUE="yes")
    assert (tmp_path / "saved").exists()
    assert lines(tmp_path / "requeued") == []


def test_slurm_keeps_api_keys_from_the_nodes(bin_dir: Path, tmp_path: Path) -> None:
    vendors = {f"{vendor}_API_KEY": "k" for vendor in ("OPENAI", "ANTHROPIC", "DEEPSEEK", "DASHSCOPE", "JUDGE")}
    finish(slurm(bin_dir, "magrpo", CONFIG, **vendors))
    inside = (tmp_path / "ray.env").read_text()
    assert inside.count("RAY_AUTH_TOKEN=") == 2
    assert "_API_KEY" not in inside


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["magrpo"], {}, "usage"),
        (["ppo", CONFIG], {}, "ppo"),
        (["magrpo", "configs/no_such.yaml"], {}, "does not exist"),
        (["magrpo", CONFIG], {"SLURM_JOB_ID": ""}, "sbatch"),
    ],
)
def test_slurm_rejects_invalid_arguments_before_it_starts_anything(
    bin_dir: Path, tmp_path: Path, arguments: list[str], variables: dict[str, str], message: str
) -> None:
    status, output = finish(slurm(bin_dir, *arguments, **variables))
    assert status == 2
    assert message in output
    assert lines(tmp_path / "srun.log") == []


def test_waiting_for_nodes_ends_at_its_deadline() -> None:
    begin = time.monotonic()
    result = subprocess.run(
        [sys.executable, ROOT / "deploy" / "wait_for_nodes.py", "127.0.0.1:9", "2", "0.3"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == 1
    assert "0 of 2 Ray node(s) at 127.0.0.1:9" in result.stderr
    assert time.monotonic() - begin < 20
