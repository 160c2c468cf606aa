"""One comparison: the evaluation of the runs if necessary, and the files for a paper.

| file | contents |
|---|---|
| table.md, table.tex | means, and paired differences from the first method, with 95 % intervals |
| figure.pdf, figure.svg, figure.png | learning curves and differences |
| comparison.json | all estimates |
| commands.sh, configs/ | the commands that train, evaluate and compare the runs again |
| evaluation/ | the evaluation, if the arguments are runs |
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from marl_ray.config import Config
from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home, write_atomically
from marl_ray.core.installed_versions import version_line
from marl_ray.core.random_streams import stream_seed
from marl_ray.core.statistics import MethodComparison, compare_methods, estimates_to_dict
from marl_ray.evaluation.evaluate import run_evaluation
from marl_ray.evaluation.requests import EvaluationRequest
from marl_ray.plugins.report.comparison.compared_runs import (
    ComparedRun,
    group_runs,
    is_evaluation_folder,
    make_methods,
    read_evaluation,
)
from marl_ray.plugins.report.comparison.paper_figure import Curve, draw_figure, reward_curves
from marl_ray.plugins.report.comparison.paper_table import latex_table, markdown_table
from marl_ray.storage.checkpoints import NAME as CHECKPOINT
from marl_ray.telemetry.sinks import read_rows

logger = logging.getLogger(__name__)
HEADER = "# Run in this folder. Training writes new run folders below runs/."
FIGURES = ("figure.pdf", "figure.svg", "figure.png")


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """The arguments of `marl-ray compare`: runs, or folders of evaluations."""

    paths: Sequence[Path]
    split: str | None
    samples: int
    ks: Sequence[int]
    folder: Path
    command: Sequence[str]
    """The command line, for commands.sh."""


def needs_evaluation(paths: Sequence[Path]) -> bool:
    """Return whether the arguments are runs to evaluate. Raises UserError for a mixture with evaluations."""
    evaluated = [is_evaluation_folder(path) for path in paths]
    if any(evaluated) and not all(evaluated):
        raise UserError("give either runs or folders of evaluations, not both")
    return not any(evaluated)


def run_comparison(config: Config | None, request: ComparisonRequest) -> Iterator[str]:
    """Compare the runs, write the files and yield lines to print. `config` is the config of the evaluation (None: the
    arguments are evaluations). Raises UserError."""
    folder = expand_home(request.folder).absolute()
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"output folder {folder} is not empty: give another --output")
    folder.mkdir(parents=True, exist_ok=True)
    evaluations = request.paths
    if config is not None:
        if len(request.paths) < 2:
            raise UserError("a comparison needs at least two runs")
        models = list(map(str, request.paths))
        into = folder / "evaluation"
        asked = EvaluationRequest(
            models=models, samples=request.samples, ks=request.ks, folder=into, split=request.split
        )
        for line in run_evaluation(config, asked).lines:
            logger.debug(line)
        evaluations = [into]
    runs = list(chain(*map(read_evaluation, evaluations)))
    groups = group_runs(runs)
    if len(groups) < 2:
        raise UserError("all runs have the same config except for the seed: a comparison needs at least two methods")
    methods, metrics = make_methods(groups)
    if not metrics:
        raise UserError("the evaluations have no metrics to compare")
    seed = config.seed if config is not None else 0
    comparison = compare_methods(methods, metrics, stream_seed(seed, "compare"))
    write_atomically(folder / "comparison.json", json.dumps(_plain(comparison), indent=1).encode())
    table = markdown_table(comparison)
    write_atomically(folder / "table.md", table.encode())
    write_atomically(folder / "table.tex", latex_table(comparison).encode())
    label, curves = _curves(groups)
    draw_figure(comparison, curves, label, [folder / name for name in FIGURES])
    _write_commands(folder, runs, request, evaluated=config is not None)
    yield table.rstrip("\n")
    tasks = len(runs[0].tasks)
    yield f"{tasks} tasks; in brackets 95 % intervals over tasks and seeds; table, figure and commands in {folder}"


def _plain(comparison: MethodComparison) -> dict[str, Any]:
    """Return the comparison as plain data."""
    plain: dict[str, dict[str, Any]] = {"seeds": {}, "methods": {}, "differences": {}}
    for name, seeds in comparison.seeds.items():
        plain["seeds"][name] = list(seeds)
    for name, estimates in comparison.methods.items():
        plain["methods"][name] = estimates_to_dict(estimates)
    for name, estimates in comparison.differences.items():
        plain["differences"][name] = estimates_to_dict(estimates)
    return plain


def _curves(groups: Mapping[str, Sequence[ComparedRun]]) -> tuple[str, dict[str, list[Curve]]]:
    """Return the label of the curves, and one curve per run of each method. Runs without metrics have none."""
    methods: list[str] = []
    rows: list[list[dict[str, Any]]] = []
    for name, members in groups.items():
        for member in members:
            if member.run is not None and member.run.folder.metrics.exists():
                methods.append(name)
                rows.append(list(read_rows(member.run.folder.metrics)))
    label, found = reward_curves(rows)
    curves: dict[str, list[Curve]] = {name: [] for name in groups}
    for name, curve in zip(methods, found, strict=True):
        curves[name].append(curve)
    return label, curves


def _write_commands(folder: Path, runs: Sequence[ComparedRun], request: ComparisonRequest, evaluated: bool) -> None:
    """Write commands.sh. `evaluated`: the arguments of the command are runs, in the order of `runs`."""
    lines = ["#!/bin/sh", f"# {version_line()}", HEADER, "set -e", ""]
    for run in runs:
        if run.run is None:
            lines.append(f"# {run.label}: no run, nothing to train")
            continue
        (folder / "configs").mkdir(exist_ok=True)
        config = folder / "configs" / f"{_run_name(run)}.yaml"
        config.write_bytes(run.run.folder.config.read_bytes())
        name = shlex.quote(f"output.run_name={_run_name(run)}")
        path = shlex.quote(str(config.relative_to(folder)))
        lines.append(f"marl-ray train {run.run.algorithm} --config {path} --override output.base_dir=runs {name}")
    lines += ["", "# The comparison was made with:", f"# {shlex.join(request.command)}"]
    if evaluated:
        lines.append(_compare_again(runs, request))
    write_atomically(folder / "commands.sh", "\n".join([*lines, ""]).encode())


def _compare_again(runs: Sequence[ComparedRun], request: ComparisonRequest) -> str:
    """Return the command that compares the new runs, or the same checkpoints of them, with the settings of `request`,
    which are in the config of the evaluation."""
    command = ["marl-ray", "compare"]
    for path, run in zip(request.paths, runs, strict=True):
        model = f"runs/{_run_name(run)}"
        if CHECKPOINT.fullmatch(path.name):
            model += f"/checkpoints/{path.name}"
        command.append(model)
    command += ["--config", "evaluation/config.yaml", "--samples", str(request.samples)]
    command += ["--k", ",".join(map(str, request.ks)), "--output", "again"]
    if request.split:
        command += ["--split", request.split]
    return shlex.join(command)


def _run_name(run: ComparedRun) -> str:
    return run.label.replace("/", "-").strip("-.")
