"""`marl-ray plan`: memory, placement, time and exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_ray.cli.main import main
from marl_ray.toy import BASE_PATH
from tests.factories import QUICKSTART


def test_a_run_that_fits_is_planned_actor_by_actor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("nodes: [{cpus: 1.5, memory_gib: 8}, {cpus: 1, memory_gib: 8}]")
    assert main(["plan", "magrpo", "--config", str(QUICKSTART), "--cluster", str(nodes)]) == 0
    out, err = capsys.readouterr()
    assert "optimizer: adamw" in out
    table = {line[:24].strip(): line for line in err.splitlines() if line.startswith("  ")}
    *parts, total = (float(cell) for cell in table["agent 0 learner"].split() if "." in cell)
    assert len(parts) >= 7
    assert total > 0.5
    assert sum(parts) == pytest.approx(total, abs=0.05)
    assert {"agent 0 generator 0", "agent 1 generator 0", "agent 1 learner"} <= set(table)
    assert sum("(1.5 CPUs, 8.0 GiB): 1.5 of 1.5 CPUs" in line for line in err.splitlines()) == 1
    assert sum("(1 CPUs, 8.0 GiB): 0.5 of 1 CPUs" in line for line in err.splitlines()) == 1
    assert "assumed: prompts of 80 tokens" in err


def test_a_folder_with_only_a_config_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_bytes((BASE_PATH / "config.json").read_bytes())
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("nodes: [{cpus: 4, memory_gib: 16}]")
    name = f"model.name={tmp_path}"
    assert main(["plan", "magrpo", "--config", str(QUICKSTART), "--cluster", str(nodes), "--override", name]) == 0
    assert "agent 0 learner" in capsys.readouterr().err


def test_an_invalid_cluster_is_rejected_before_the_config_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "magrpo", "--config", str(QUICKSTART), "--cluster", "8xH100"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: --cluster 8xH100 is neither NODESxDEVICESxTYPE, as 2x8xH100-80GB, nor a .yaml file\n"


def test_missing_cores_are_an_error_with_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("nodes: [{cpus: 1, memory_gib: 8}]")
    assert main(["plan", "magrpo", "--config", str(QUICKSTART), "--cluster", str(nodes)]) == 1
    assert "error: the cluster cannot place this run: asked for CPU 2" in capsys.readouterr().err.splitlines()[-1]
