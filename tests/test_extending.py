"""docs/how-to/extend.md: every code block runs."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from marl_ray.config import JudgeConfig, from_tree
from marl_ray.credit import ESTIMATORS
from marl_ray.launch.run_checks import check

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "extend.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
FILES = {code.split("\n")[0].removeprefix("# "): code for _, code in BLOCKS if code.startswith("# ")}
SNIPPETS = [code for kind, code in BLOCKS if kind == "python" and not code.startswith("# ")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with the page's files, whose modules are removed afterwards."""
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if f"{name}.py" in FILES:
            del sys.modules[name]


def test_the_page_has_an_example_of_each_kind() -> None:
    assert set(FILES) == {"sums.py", "leader.py", "bonus.py", "rows.py", "score.py", "median.py"}
    assert {kind for kind, _ in BLOCKS} == {"yaml", "python"}
    checked = "".join(SNIPPETS)
    for kind in ("environment", "dataset", "mode", "estimator"):
        assert f"check_{kind}(" in checked


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_every_snippet_runs(folder: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    exec(compile(SNIPPETS[number], f"{PAGE.name}, snippet {number}", "exec"), {"__file__": str(folder / "snippet.py")})


def test_the_config_passes_a_dry_run(folder: Path) -> None:
    text, judge = (code for kind, code in BLOCKS if kind == "yaml")
    assert set(yaml.safe_load(judge)["judge"]) == {field.name for field in dataclasses.fields(JudgeConfig)}
    (folder / "sums.jsonl").write_text('{"total": 7}\n{"total": -2}\n')
    tree = yaml.safe_load(text) | {"model": {"name": "bundled:toy-base", "max_length": 1024}}
    config = from_tree(tree, "magrpo")
    assert config == from_tree(tree | {"environment": None}, "magrpo"), "the dataset type's own"
    problem = check(config, dry=True)
    environment, (task, other) = problem.environment, problem.train_tasks
    assert (task.prompt, other.fields) == ("Make 7 together.", {"total": -2})
    assert config.environment == "sums:Sums"
    right = environment.attempt(task, ["3", "4"], last=False)
    received = problem.transition.next_prompts(task, ["", ""], right, environment.outcome(right, None))
    feedback = "Feedback:\nscore: 1.50\nleast of it from: spoken\n\nSay another whole number.\n"
    assert asyncio.run(received).prompts == [f"Your previous answer:\n{said}\n\n{feedback}" for said in ("3", "4")]
    half = environment.outcome(environment.attempt(task, ["3", "no"], last=True), None)
    assert (half.reward, half.rewards) == (0.25, (0.25, -0.75))
    assert ESTIMATORS.get(config.agents[0].estimator).__name__ == "median"
