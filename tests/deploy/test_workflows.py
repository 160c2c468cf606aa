"""Workflows, hooks and templates of the repository: they call make targets that exist, and agree with setup.py."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.helpers import extras
from tests.factories import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))
SETUP = (ROOT / "setup.py").read_text(encoding="utf-8")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def make_targets(text: str) -> set[str]:
    return {word for line in re.findall(r"\bmake ([^\n&]+)", text) for word in line.split() if not word.startswith("-")}


def test_workflows_and_the_local_check_call_the_same_targets() -> None:
    local = make_targets((ROOT / ".ci" / "run").read_text(encoding="utf-8")) - {"check,"}
    called = set.union(*(make_targets("\n".join(steps_of(path, "run"))) for path in WORKFLOWS))
    assert {"check", "docs", "wheel", "test", "test-all"} <= called & TARGETS
    assert called <= TARGETS
    assert {"check", "docs", "wheel", "test", "test-slow"} <= local


def steps_of(path: Path, key: str) -> list[str]:
    return [step[key] for job in load(path)["jobs"].values() for step in job["steps"] if key in step]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_a_time_limit_few_rights_and_pinned_actions(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 360 for job in workflow["jobs"].values())
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", action) for action in steps_of(path, "uses"))
    for job in workflow["jobs"].values():
        versions = job.get("strategy", {}).get("matrix", {}).get("python", ["3.11"])
        assert versions[0] == re.search(r'python_requires=">=([\d.]+)', SETUP)[1]  # type: ignore[index]
        assert versions in (["3.11"], ["3.11", "3.12", "3.13"])


def test_pull_requests_run_fast_tests_and_nights_run_all() -> None:
    commands = {path.stem: "\n".join(steps_of(path, "run")).splitlines() for path in WORKFLOWS}
    assert "make test" in commands["pull-request"]
    assert "make test-all" in commands["nightly"]
    assert "make test-all" not in commands["pull-request"]


def test_pyproject_agrees_with_setup_py() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    assert f'name="{project["name"]}"' in SETUP
    assert f'python_requires="{project["requires-python"]}"' in SETUP
    fields = {"dependencies": "install_requires", "optional-dependencies": "extras_require", "scripts": "entry_points"}
    assert {fields.get(name, name) for name in project["dynamic"]} == set(re.findall(r"^    (\w+)=", SETUP, re.M)) - {
        "name",
        "python_requires",
        "packages",
        "package_data",
    }
    (alternatives,) = settings["tool"]["uv"]["conflicts"]
    assert {entry["extra"] for entry in alternatives} <= extras()


def test_hooks_are_tools_of_the_development_environment() -> None:
    (repository,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        assert hook["entry"].startswith(".venv/bin/"), hook
        assert hook["language"] == "system"
    assert "ruff" in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]


def test_issue_templates_ask_for_machine_and_problem() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"):
        form = load(path)
        assert {"name", "description", "body"} <= set(form)
        ids = [part["id"] for part in form["body"]]
        assert len(set(ids)) == len(ids)
        assert any(part.get("validations", {}).get("required") for part in form["body"])


def test_the_citation_names_the_version() -> None:
    citation = load(ROOT / "CITATION.cff")
    assert citation["version"] == re.search(r'version="([\d.]+)"', SETUP)[1]  # type: ignore[index]
    assert citation["license"] == "MIT"
