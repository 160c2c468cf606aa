"""Export of a run or a checkpoint to a folder.

An export has the layout of a run folder, so every command that reads the models of a run reads an export too:

| file | contents |
|---|---|
| models/agent_*/ | one model per policy: weights, tokenizer and generation config |
| team.json | roles, prompts, sampling, turns and versions, for other programs |
| config.yaml | resolved config without output and tracker settings |
| README.md | model card |
| curve.png, metrics.jsonl | learning curve of the run |
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from marl_ray.config import Config
from marl_ray.core.errors import UserError
from marl_ray.core.files import complete_folder, expand_home, output_folder
from marl_ray.evaluation.model_sources import (
    EvaluatedModel,
    ModelSource,
    check_adapter,
    evaluated_models,
    find_model_sources,
    policy_config,
    run_folder_of,
)
from marl_ray.models.names import check_model, is_hub_id, resolve_model
from marl_ray.models.tokenization import decide_template, load_tokenizer
from marl_ray.models.weight_files import TRAINED_FILE
from marl_ray.plugins.serve.export.model_card import (
    CURVE,
    CardMetric,
    evaluation_measurements,
    model_card,
    training_measurements,
)
from marl_ray.plugins.serve.export.request import ExportRequest
from marl_ray.plugins.serve.export.team_file import export_tree, local_paths, read_sampling, team_description
from marl_ray.results.returns_plot import plot_run
from marl_ray.storage.checkpoints import NAME, checkpoint_step
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.sinks import is_evaluation, read_rows

logger = logging.getLogger(__name__)
SUFFIXES = (".safetensors", ".json", ".txt", ".model", ".jinja", ".py", ".tiktoken")
"""Files of a model that are copied. The states of optimizers and critics have other suffixes."""
ADAPTER_CONFIG = "adapter_config.json"
GENERATION_CONFIG = "generation_config.json"
TEAM = "team.json"
CARD = "README.md"


def export_run(request: ExportRequest) -> Iterator[str]:
    """Write the export, and yield lines to print. The folder is complete or absent. Raises UserError."""
    saved = SavedRun.read(run_folder_of(request.run))
    config = saved.config()
    (source,) = find_model_sources([str(request.run)], config.agents)
    (model,) = evaluated_models([source], config, swap=False)
    target = output_folder(request.to)
    target.parent.mkdir(parents=True, exist_ok=True)
    measured = _measurements(request, source, saved.folder)
    for adapter in source.adapters:
        check_adapter(adapter)
    with complete_folder(target) as hidden:
        _write(hidden, request, config, source, model, saved.folder, measured)
    for name in local_paths(config):
        yield f"note: config.yaml names a local path, which other machines lack: {name}"
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    yield f"{len(config.policies)} models of {source.label}, {size / 1e6:.1f} MB, in {target}"


def _write(
    folder: Path,
    request: ExportRequest,
    config: Config,
    source: ModelSource,
    model: EvaluatedModel,
    run: RunFolder,
    measured: list[CardMetric],
) -> None:
    export = RunFolder(folder)
    export.models.mkdir(parents=True)
    steps = _steps(request.run, run, config)
    folders = []
    templates = []
    for agent, weights in enumerate(source.weights):
        target = export.model(config.policy_of(agent))
        if not target.exists():
            _write_model(Path(weights), target, source.adapters.get(weights), config, request.merge)
            if steps is not None:
                (target / TRAINED_FILE).write_text(json.dumps({"steps": steps}) + "\n", encoding="utf-8")
        settings = policy_config(model, agent).model
        tokenizer = load_tokenizer(str(target), settings)
        through_template, _ = decide_template(str(target), tokenizer, settings)
        templates.append(through_template)
        folders.append(str(target.relative_to(folder)))
    team = team_description(config, folders, templates, steps)
    # Agents of one policy share a folder, which keeps the settings of the last agent.
    for agent, name in enumerate(folders):
        _write_generation_config(folder / name, team, agent, config)
    (folder / TEAM).write_text(json.dumps(team, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    export.config.write_text(yaml.safe_dump(export_tree(config), sort_keys=False), encoding="utf-8")
    rows = []
    if run.metrics.exists():  # a run without a finished step has none
        rows = list(read_rows(run.metrics))
    name = request.name or request.to.name
    if rows:
        shutil.copyfile(run.metrics, export.metrics)
        plot_run(rows, folder / CURVE, name)
    card = model_card(name, team, config, measured, request.license, curve=bool(rows))
    (folder / CARD).write_text(card, encoding="utf-8")


def _write_model(weights: Path, target: Path, base: str | None, config: Config, merge: bool) -> None:
    """Copy the complete model or the adapter in `weights`, or merge an adapter into `base`."""
    if base is not None and merge:
        from marl_ray.learning.learner_files import save_merged_model  # torch

        check_model(base, config.model)
        save_merged_model(resolve_model(base), weights, target, config.model)
        return
    target.mkdir()
    for file in sorted(weights.iterdir()):
        if file.suffix in SUFFIXES:
            shutil.copyfile(file, target / file.name)
    if base is not None:
        path = target / ADAPTER_CONFIG
        content = json.loads(path.read_text(encoding="utf-8"))
        content["base_model_name_or_path"] = base if is_hub_id(base) else resolve_model(base)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _write_generation_config(folder: Path, team: Mapping[str, Any], agent: int, config: Config) -> None:
    """Write the agent's sampling settings to generation_config.json and keep the model's special tokens. An adapter's
    folder has no model to take them from."""
    from transformers import AutoConfig, GenerationConfig

    if (folder / GENERATION_CONFIG).exists():
        generation = GenerationConfig.from_pretrained(folder)
    elif (folder / "config.json").exists():
        own_code = config.model.model_kwargs.trust_remote_code
        settings = AutoConfig.from_pretrained(folder, trust_remote_code=own_code)
        generation = GenerationConfig.from_model_config(settings)
    else:
        generation = GenerationConfig(eos_token_id=load_tokenizer(str(folder), config.model).eos_token_id)
    generation.update(**read_sampling(team, agent))
    generation.save_pretrained(folder)


def _steps(path: Path, run: RunFolder, config: Config) -> int | None:
    """Return the number of training steps of the exported models, None if it is unknown."""
    path = expand_home(path)
    if NAME.fullmatch(path.name):
        return checkpoint_step(path)
    steps = list(map(checkpoint_step, run.checkpoints.all()))
    trained = run.trained_steps(config.policies)
    if trained is not None:
        steps.append(trained)
    return max(steps, default=None)


def _measurements(request: ExportRequest, source: ModelSource, run: RunFolder) -> list[CardMetric]:
    """Return the metrics of --evaluation, by default of the run's last evaluation."""
    if request.evaluation is None:
        if not run.metrics.exists():
            return []
        rows = list(filter(is_evaluation, read_rows(run.metrics)))
        if not rows:
            return []
        return training_measurements(rows[-1])
    file = expand_home(request.evaluation) / "evaluation.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        of_label = content["weights"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{file} is not the result of marl-ray eval ({type(error).__name__})") from None
    for label, agents in of_label.items():
        models = [str(Path(agent["model"]).resolve()) for agent in agents]
        if models == list(source.weights):
            return evaluation_measurements(content, label)
    raise UserError(f"{file} has no evaluation of {request.run}, only of {', '.join(of_label)}: evaluate this run")
