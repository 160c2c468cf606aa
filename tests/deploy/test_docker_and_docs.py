"""The Dockerfiles agree with setup.py, and the documents with the repository."""

import json
import re
from pathlib import Path

import pytest
import yaml

from marl_ray.config import load
from tests.deploy.helpers import CONFIG, DOCKERFILES, KUBERAY, PODS, check_command, direct_requirements, extras
from tests.factories import ROOT, plan_of


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, with joined continuation lines and without comments."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", text)
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_dockerfiles_use_the_same_python_and_run_as_the_user_of_the_pods(path: Path) -> None:
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
def test_dockerfiles_install_the_pinned_versions(path: Path) -> None:
    installs = " ".join(value for step, value in instructions(path) if step == "RUN" and "pip install" in value)
    for name, version in re.findall(r"([\w-]+)==([\w.]+)", installs):
        assert version in direct_requirements()[name].specifier
    extra = re.search(r"'\.\[(\w+),lora\]'", installs)
    assert extra is not None
    assert extra[1] == path.suffix[1:]
    assert extra[1] in extras()
    assert f"-c constraints/{extra[1]}.txt" in installs


def test_the_cpu_image_has_cpu_torch_and_no_cuda_packages() -> None:
    runs = [value for step, value in instructions(DOCKERFILES[0]) if step == "RUN"]
    torch = next(i for i, value in enumerate(runs) if "grep '^torch==' constraints/cpu.txt" in value)
    assert "https://download.pytorch.org/whl/cpu" in runs[torch]
    extra = next(i for i, value in enumerate(runs) if "'.[cpu,lora]'" in value)
    assert torch < extra
    assert "pip uninstall -y torchvision torchaudio torchcodec" in runs[extra]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_dockerfiles_install_dependencies_before_they_copy_the_code(path: Path) -> None:
    steps = instructions(path)
    dependencies = next(i for i, (step, value) in enumerate(steps) if step == "RUN" and "'.[" in value)
    code = next(i for i, (step, value) in enumerate(steps) if step == "COPY" and "marl_ray" in value)
    assert dependencies < code


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_dockerfiles_copy_only_files_of_the_build_context(path: Path) -> None:
    included = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for step, value in instructions(path):
        assert step != "ADD"
        if step == "COPY":
            *sources, _ = value.split()
            for source in sources:
                assert (ROOT / source).exists(), source
                assert source in included, source


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_dockerfiles_have_no_secrets_and_run_a_training(path: Path) -> None:
    steps = instructions(path)
    for step, value in steps:
        assert step != "ARG"
        if step == "ENV":
            assert not re.search(r"KEY|TOKEN|SECRET|PASSWORD", value)
    command = next(value for step, value in steps if step == "CMD")
    assert check_command(json.loads(command)).output.base_dir == "/runs"


@pytest.mark.parametrize("path", [ROOT / "docs" / "how-to" / "cluster.md", KUBERAY / "README.md"], ids=lambda p: p.name)
def test_documents_name_files_that_exist(path: Path) -> None:
    names = set(re.findall(r"\b(?:deploy|configs|docker|marl_ray)/[\w./-]*\w", path.read_text()))
    assert names
    assert [name for name in sorted(names) if not (ROOT / name).exists()] == []


def test_the_examples_request_the_documented_resources() -> None:
    blocks = re.findall(
        r"```yaml\n(.*?)```\n\nThis requests (.*?)\.\s",
        (ROOT / "docs" / "how-to" / "cluster.md").read_text(),
        re.DOTALL,
    )
    requested = []
    for block, _ in blocks:
        overrides = {
            f"resources.{actor}.{key}": value
            for actor, settings in yaml.safe_load(block)["resources"].items()
            for key, value in settings.items()
        }
        plan = plan_of(load(ROOT / CONFIG, "magrpo", overrides), cluster_has_gpus=True)
        transports = {agent.transport for agent in plan.agents}
        requested.append((sum(b.gpus for b in plan.bundles), sum(b.cpus for b in plan.bundles), transports))
    assert requested == [(4, 24, {"nccl"}), (2, 24, {"ipc"})]
    assert "= 4 GPUs" in blocks[0][1]
    assert "= 24 CPUs" in blocks[0][1]
    assert blocks[1][1] == "2 GPUs"
