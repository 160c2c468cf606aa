"""docs/reference/plugins.md: every code block runs, and the page has every extension point."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from marl_ray import testing
from marl_ray.config import from_tree
from marl_ray.config.validation import PLUGINS
from marl_ray.core.errors import UserError
from marl_ray.launch.run_checks import check
from tests.end_to_end.helpers import rows, train

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "plugins.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S)
OWN = "".join(code for _, code in BLOCKS if code.startswith("# own.py"))
SNIPPETS = [code for kind, code in BLOCKS if kind == "python" and not code.startswith("# own.py")]
CONFIG = next(code for kind, code in BLOCKS if kind == "yaml")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with the page's module, which is removed afterwards."""
    futures = "from __future__ import annotations\n"
    (tmp_path / "own.py").write_text(futures + OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("own", None)
    yield tmp_path
    sys.modules.pop("own", None)


def test_the_table_has_every_extension_point() -> None:
    rows = re.findall(r"^\| \[([\w ]+)\]\((\S+)\) \| `([\w.]+)` \| .* \| `(\w+)` \|$", PAGE, re.M)
    settings = {key.format(algorithm="magrpo") for key in PLUGINS} | {"output.sinks"}
    settings -= {"compat", "magrpo.eval_handoff"}  # the latter takes the names of handoff
    assert {setting for _, _, setting, _ in rows} == settings
    assert {name for *_, name in rows} == set(testing.__all__)
    headings = {f"#{title.lower().replace(' ', '-')}" for title in re.findall(r"^## (.+)$", PAGE, re.M)}
    assert {link for _, link, _, _ in rows if link.startswith("#")} <= headings


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_every_snippet_runs(folder: Path, number: int) -> None:
    exec(compile(SNIPPETS[number], f"plugins.md, snippet {number}", "exec"), {})


def test_examples_are_short() -> None:
    for code in (code for _, code in BLOCKS if code.startswith("# own.py")):
        body = [
            line
            for line in code.splitlines()
            if line.strip() and not re.match(r"# own|from |import |@|def |class", line)
        ]
        assert len(body) <= 7, code


def test_the_config_passes_a_dry_run(folder: Path) -> None:
    tree = yaml.safe_load(CONFIG) | {"model": {"name": "bundled:toy-base", "max_length": 1024}}
    config = from_tree(tree, "magrpo")
    check(config, dry=True)
    with pytest.raises(UserError, match="estimator own:against_greedy uses the reward of a joint action that is not"):
        from_tree(tree | {"magrpo": tree["magrpo"] | {"handoff": "all", "num_turns": 2}}, "magrpo")


def test_a_missing_module_is_an_error_before_anything_starts(folder: Path) -> None:
    for section, key, value in (
        ("magrpo", "loss", "loss own:Nothing: module own has no Nothing"),
        ("magrpo", "handoff", "handoff own:Nothing: module own has no Nothing"),
        ("output", "sinks", "output.sinks own:Nothing: module own has no Nothing"),
    ):
        chosen = {key: ["own:Nothing"] if key == "sinks" else "own:Nothing"}
        tree = {
            "model": {"name": "bundled:toy-base"},
            "dataset": {"name": "bundled:toy"},
            "magrpo": {},
            section: chosen,
        }
        with pytest.raises(UserError, match=value):
            check(from_tree(tree, "magrpo"), dry=True)


@pytest.mark.slow
def test_a_run_trains_with_plugins_in_driver_and_learners(folder: Path) -> None:
    tree = yaml.safe_load(CONFIG) | {"model": {"name": "bundled:toy-base", "max_length": 1024}}
    small = {"num_turns": 1, "max_steps": 1, "num_generations": 8, "rollout_buffer_size": 8}
    actor_critic = {"critic": "own:frozen_features", "loss": "own:Cispo", "optimizer": "own:sgd"}
    for name, section in (("page", tree["magrpo"] | small), ("critic", actor_critic | small)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(tree | {"magrpo": section}))
        own = [f"output.base_dir={folder}", f"output.run_name={name}", "output.save_final_model=false"]
        result = train("--config", f"{name}.yaml", "--override", *own, folder=folder, timeout=600)
        assert result.returncode == 0, result.stderr
        (row,) = rows(folder / name, "step")
        assert row["agent_0/optimizer_steps"] == 1
        assert (folder / name / "rewards.txt").read_text().startswith("step 1 ")
        assert ("agent_0/critic_loss" in row) == (name == "critic")
