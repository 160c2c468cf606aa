"""The Python API: `train`, `evaluate`, `score` and `load_run`, with the engine, checks and errors of the commands.

    import marl_ray as mr

    run = mr.train("config.yaml", max_steps=20, output={"run_name": "one"})
    print(run.metrics[-1])

Settings are keyword arguments with the names of YAML keys (`marl_ray.config.keywords`). Nothing is printed unless
`verbose` or `progress` is true; run.log in the run folder has all messages. A mistake is a `UserError`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_ray.config import ConfigSource, from_keywords
from marl_ray.core.errors import UserError
from marl_ray.core.extras import explain_missing_modules
from marl_ray.data.python_objects import ObjectNames
from marl_ray.registry import in_memory
from marl_ray.results.run_results import Run
from marl_ray.telemetry.logs import python_output
from marl_ray.telemetry.timing import StartupTimer

if TYPE_CHECKING:
    from marl_ray.evaluation.evaluate import Evaluation

logger = logging.getLogger(__name__)
RunSource = Run | str | PathLike[str]
"""A run, its folder, or one of its checkpoints."""


def train(
    config: ConfigSource | None = None,
    *,
    algorithm: str | None = None,
    resume: RunSource | None = None,
    overrides: Mapping[str, Any] | None = None,
    verbose: bool = False,
    progress: bool = False,
    **settings: Any,
) -> Run:
    """Train until the run ends, and return the run.

    Args:
        config: A YAML file, its content as a mapping, or the config of a run. Default: the keywords alone.
        algorithm: `magrpo`, or `grpo` for a single agent. Default: the section in the config, else magrpo.
        resume: The run to resume. Keywords are then changes of its settings.
        overrides: Values by dotted key, like `--override`. They win over keywords.
        verbose: Print the progress of the run on standard error.
        progress: Show a progress bar.
        settings: Settings by the names of YAML keys. `environment`, `dataset`, `estimator` and `external={"mode": ...}`
            may be Python objects. Without a config, `max_steps` alone sets the length of the run.

    Raises `UserError` for a mistake or a failed run, and KeyboardInterrupt if the run is stopped.

    Example:
        >>> run = train("configs/quickstart.yaml", max_steps=2)  # doctest: +SKIP
    """
    with _call(verbose, progress, settings, overrides) as call:
        from marl_ray.launch import run as launch
        from marl_ray.launch.run_checks import existing_run
        from marl_ray.storage.resume import SavedRun

        if resume is None:
            resolved = from_keywords(config, algorithm, call.settings, call.overrides, logger.info)
            saved = existing_run(resolved) if resolved.output.resume == "auto" else None
        elif config is None:
            saved = SavedRun.read(Path(_name(resume)))
            resolved = from_keywords(saved.tree, algorithm, call.settings, call.overrides, logger.info)
        else:
            raise UserError("resume uses the config.yaml of the run: leave out config and use keywords")
        return Run(launch.train(resolved, saved, StartupTimer(imports_s=0.0)).path)


def evaluate(
    models: RunSource | Sequence[RunSource] = "base",
    config: ConfigSource | None = None,
    *,
    split: str | None = None,
    samples: int | None = None,
    k: Sequence[int] = (1,),
    protocol: str = "parallel",
    swap: bool = False,
    cooperation: bool = False,
    episodes: bool = False,
    output: str | PathLike[str] | None = None,
    algorithm: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    verbose: bool = False,
    progress: bool = False,
    **settings: Any,
) -> Evaluation:
    """Estimate pass@k, returns and levels of models on a split, like `marl-ray eval`.

    Args:
        models: Runs, checkpoints, model folders, `bundled:NAME`, or `"base"` for the models of the config; one or
            several, which are compared.
        config: As in `train`. Default: the config of the first run among the models.
        split: Split to evaluate on. Default: the evaluation tasks of the config.
        samples: Episodes per task. Default: the largest k.
        k: Values of k for pass@k.
        protocol: `parallel`, `single`, `sequential` or `discussion`.
        swap: Evaluate every combination of the models' agents.
        cooperation: Recombine the answers of turn 1, and measure the contribution of each agent.
        episodes: Write every episode with all texts.
        output: Folder for the results. Default: a new folder below evaluations/.
        algorithm, overrides, verbose, progress, settings: As in `train`.

    Raises `UserError`.
    """
    with _call(verbose, progress, settings, overrides) as call:
        from marl_ray.evaluation.evaluate import default_folder, evaluation_config, run_evaluation
        from marl_ray.evaluation.requests import EvaluationRequest

        listed = [models] if isinstance(models, Run | str | PathLike) else models
        names = [_name(model) for model in listed]
        resolved = evaluation_config(names, config, algorithm, call.settings, call.overrides)
        request = EvaluationRequest(
            models=names,
            split=split,
            samples=max(k) if samples is None else samples,
            ks=sorted(set(k)),
            protocol=protocol,
            swap=swap,
            folder=default_folder(resolved.dataset) if output is None else Path(output),
            episodes=episodes,
            cooperation=cooperation,
        )
        return run_evaluation(resolved, request)


def score(
    completions: str | PathLike[str] | Sequence[Mapping[str, Any]],
    dataset: Any = None,
    type: str | None = None,
    *,
    environment: Any = None,
    split: str | None = None,
    feedback: str | None = None,
    workers: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    verbose: bool = False,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Reward given completions without a model and without Ray, like `marl-ray score`, and return one score per row.

    A score without a verdict of the sandbox has `failure` in place of its reward.

    Args:
        completions: A .jsonl file, or its rows: `{"task_id": "HumanEval/0", "completions": ["...", "..."]}`.
        dataset: A .jsonl, .parquet, .json or .csv file, a hub id, or rows. Default: the prompts of the environment.
        type: `dataset.type`, which determines the rewards.
        environment: Another environment than that of the type, as in `train`.
        split: Split of the data set. Default: test; for rows and prompts, train.
        feedback: Add the next prompts of this external.mode.
        workers: Parallel sandboxes. Default: one per core.
        overrides, verbose, progress: As in `train`.

    Raises `UserError`.
    """
    objects = {key: value for key, value in (("environment", environment), ("dataset", dataset)) if value is not None}
    with _call(verbose, progress, objects, overrides) as call:
        from marl_ray.data import infer_type, source_name
        from marl_ray.evaluation.requests import ScoreRequest
        from marl_ray.evaluation.scoring import score_completions

        section = call.settings.pop("dataset", None)
        if section is None:
            raise UserError("no dataset: give dataset, or an environment with prompts")
        name = section["name"] if isinstance(section, Mapping) else section
        rows = Path(completions) if isinstance(completions, str | PathLike) else completions
        named = {key: value for key, value in call.settings.items() if key == "environment"}
        split = split or ("train" if source_name(name) else "test")
        lines: list[dict[str, Any]] = []
        request = ScoreRequest(name, rows, type or infer_type(name), split, feedback, workers, named | call.overrides)
        score_completions(request, lines.append)
        return lines


def load_run(path: RunSource) -> Run:
    """Return the run in a folder, finished or not. Raises `UserError` if there is none.

    Example:
        >>> load_run("runs/one").metrics[-1]["step"]  # doctest: +SKIP
    """
    return Run(Path(_name(path)))


def _name(run: RunSource) -> str:
    return str(run.path if isinstance(run, Run) else run)


@contextmanager
def _call(
    verbose: bool, progress: bool, settings: Mapping[str, Any], overrides: Mapping[str, Any] | None
) -> Iterator[ObjectNames]:
    """Prepare a call, and yield its settings and overrides with names in place of objects."""
    names = ObjectNames(settings, overrides or {})
    with explain_missing_modules(), python_output(verbose, progress), in_memory(names.objects):
        yield names
