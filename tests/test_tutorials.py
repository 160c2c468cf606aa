"""Tutorials: every code block runs, the notebook is that of the page, and the tables name existing settings."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import marl_ray as mr
from marl_ray import api
from marl_ray.config import from_keywords
from marl_ray.config.compat import KEY_ALIASES
from marl_ray.config.keys import sections, settings
from tests.factories import ROOT
from tools.make_notebook import NOTEBOOK, notebook, without_outputs

PAGES = ROOT / "docs" / "tutorials"
MIGRATION = (PAGES / "from_comlrl_or_trl.md").read_text()


def code_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)


@pytest.mark.plugins("comlrl")
@pytest.mark.parametrize("number", range(2))
def test_migrated_programs_have_a_valid_config(number: int) -> None:
    names: dict[str, Any] = {}
    exec(compile(code_of(MIGRATION)[number], f"from_comlrl_or_trl.md, block {number}", "exec"), names)
    given = names["settings"]
    algorithm = given.pop("algorithm", None)
    with api._call(False, False, given, None) as call:
        config = from_keywords(None, algorithm, call.settings)
        answers = ["5"] * config.num_agents
        (score,) = mr.score([{"task_id": "prompt/0", "completions": answers}], environment=names["env"])
    assert score["reward"] == float(number == 1)
    assert config.training.max_grad_norm == (None if config.compat == "comlrl" else 1.0)


def test_the_tables_name_existing_settings() -> None:
    known = settings("magrpo")
    names = {key.removeprefix("magrpo.") for key in [*known, *sections(known)]}
    names |= {alias.removeprefix("{algorithm}.") for alias in KEY_ALIASES}
    names |= {
        "prompts",
        "eval_prompts",
        "reward",
        "feedback",
        "prompt",
        "agents",
        "magrpo",
        "grpo",
        "RewardEnvironment",
    }
    cells = [line.split("|")[2] for line in MIGRATION.splitlines() if line.startswith("| `")]
    found = {name for cell in cells for name in re.findall(r"`([a-z_.]+)(?::[^`]*)?`", cell)}
    assert found - names == set()
    assert len(found) > 30


def test_the_notebook_has_the_cells_of_the_page() -> None:
    text = (PAGES / "python_api.md").read_text()
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert without_outputs(content) == notebook(text), "run python -m tools.make_notebook"
    assert all(cell["execution_count"] for cell in content["cells"] if "outputs" in cell), "it was executed"
    assert code_of(text) == ["".join(cell["source"]) + "\n" for cell in notebook(text)["cells"] if "outputs" in cell]


@pytest.mark.slow
@pytest.mark.nightly
def test_the_notebook_runs(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="the notebook needs nbclient and ipykernel, of the extra dev")
    pytest.importorskip("ipykernel")
    import nbformat
    from nbclient import NotebookClient

    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ["PYTHONPATH"] = path
    content = nbformat.reads(NOTEBOOK.read_text(), as_version=4)
    client = NotebookClient(content, timeout=900, resources={"metadata": {"path": str(tmp_path)}})
    cells = [cell for cell in client.execute().cells if cell.cell_type == "code"]
    printed = ["".join(out.get("text", "") for out in cell.outputs if out.output_type == "stream") for cell in cells]
    shown = [out.data for cell in cells for out in cell.outputs if out.output_type == "execute_result"]
    assert any("image/png" in data for data in shown), "the plot of the run"
    assert printed[2] == "unknown setting 'magrpo.max_stepz': did you mean 'magrpo.max_steps'?\n"
    assert "1.2 {'digits': 0.2, 'right': 1.0}\n" in printed
    assert any("turn_2/reward_mean" in text for text in printed), "the table of the evaluation"
