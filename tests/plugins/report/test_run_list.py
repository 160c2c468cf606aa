"""The list of runs: its rows, curves of one quantity, and settings that differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marl_ray.cli.main import main
from marl_ray.plugins.report.run_list import list_data, read_listed_run
from marl_ray.storage.run_folder import RunFolder
from tests.plugins.report.report_runs import page_data, write_run


def write_runs(folder: Path) -> list[str]:
    folder.mkdir(exist_ok=True)
    return [str(write_run(folder / name, seed=seed)) for seed, name in enumerate(("one", "two"))]


def test_several_runs_are_listed_and_have_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = write_runs(tmp_path / "runs")
    assert main(["report", *runs]) == 1
    assert "needs --output FILE" in capsys.readouterr().err
    file = tmp_path / "both.html"
    assert main(["report", *runs, "--output", str(file)]) == 0
    data = page_data(file.read_text(encoding="utf-8"))
    assert [run["name"] for run in data["runs"]] == ["one", "two"]
    for run in data["runs"]:
        page = (tmp_path / run["link"]).read_text(encoding="utf-8")
        assert page_data(page)["name"] == run["name"]
    assert data["settings"] == [{"key": "seed", "values": ["0", "1"], "is_key": True}], "nothing but the seed"
    rewards = dict(data["values"]["rewards"])
    assert rewards["Mean reward, turn 1, held-out"] == ["1 [0.804, 1.196]"] * 2
    assert rewards["Mean reward, turn 1"] == ["1.75"] * 2


def test_a_folder_of_runs_is_a_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs"
    write_runs(folder)
    damaged = folder / "damaged"
    damaged.mkdir()
    (damaged / "config.yaml").write_text("a: [")
    (folder / "notes.txt").write_text("")
    assert main(["report", str(folder)]) == 0
    data = page_data((folder / "report.html").read_text(encoding="utf-8"))
    by_name = {run["name"]: run for run in data["runs"]}
    assert by_name.keys() == {"one", "two", "damaged"}
    assert "not valid YAML" in by_name["damaged"]["problem"]
    assert by_name["one"]["link"] == "one/report.html"
    assert by_name["one"]["reward"]["after"] == 1.0
    assert by_name["one"]["spark"] == [1.5, 2]
    assert (folder / "one" / "report.html").exists()
    assert not (damaged / "report.html").exists()
    assert "damaged: " in capsys.readouterr().out


def curves(tmp_path: Path, evaluations: dict[str, int]) -> dict[str, Any]:
    """Return the chart of the mean reward of runs with these numbers of evaluations."""
    runs = []
    for name, count in evaluations.items():
        folder = RunFolder(tmp_path / name)
        folder.make()
        rows: list[dict[str, Any]] = []
        for step in range(1, 6):
            rows.append({"step": step, "env_steps": 8 * step, "turn_1/reward_mean": 1.0})
            if step <= count:
                rows.append({"step": step, "env_steps": 8 * step, "eval/turn_1/reward_mean": 2.0, "eval/episodes": 4})
        folder.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        runs.append(read_listed_run(folder, "x"))
    [chart] = list_data(runs)["charts"]
    assert isinstance(chart, dict)
    return chart


def test_all_curves_of_a_chart_show_one_quantity(tmp_path: Path) -> None:
    chart = curves(tmp_path / "held", {"a": 3, "b": 5})
    assert chart["held_out"]
    assert {y for curve in chart["curves"] for _, y in curve} == {2}
    chart = curves(tmp_path / "mixed", {"a": 5, "b": 2})
    assert not chart["held_out"]
    assert {y for curve in chart["curves"] for _, y in curve} == {1}
