"""Temporary merging of LoRA adapters into their base models, because engines load complete models.

The merged models are in a hidden folder of the adapter's run, which is on a path that the engines' nodes share, and are
deleted after the evaluation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from marl_ray.config import Config, ModelConfig
from marl_ray.core.errors import UserError
from marl_ray.evaluation.episode_sampling import EvaluationPlan
from marl_ray.models.lora import peft_installed
from marl_ray.models.names import resolve_model
from marl_ray.models.weight_files import check_folder
from marl_ray.storage.run_folder import RunFolder

logger = logging.getLogger(__name__)

PREFIX = ".merged-"


def check_adapter(folder: str) -> None:
    """Raise UserError unless the adapter is complete and peft is installed."""
    if not peft_installed():
        raise UserError(f"{folder} is an adapter, and peft is not installed: pip install 'marl-ray[lora]'")
    try:
        check_folder(Path(folder), own_tokenizer=True)
    except UserError as error:
        raise UserError(f"adapter {folder} cannot be loaded: {error}") from None


@contextmanager
def merged_adapters(plan: EvaluationPlan) -> Iterator[EvaluationPlan]:
    """Yield the plan with merged models in place of adapters; delete them at the end. Raises UserError."""
    with ExitStack() as stack:
        merged = {folder: _merge(folder, base, plan.config.model, stack) for folder, base in plan.adapters.items()}
        models = [replace(model, config=_with_models(model.config, merged)) for model in plan.models]
        yield replace(plan, models=models)


def _merge(folder: str, base: str, model: ModelConfig, stack: ExitStack) -> str:
    """Return the folder of the merged model, which `stack` deletes. It keeps the adapter's name, on which the prompt
    format depends."""
    from marl_ray.learning.export import save_merged_model  # torch

    logger.info(f"merging adapter {folder} into {base}")
    adapter = Path(folder)
    run = next(parent for parent in adapter.parents if RunFolder(parent).config.exists())
    try:
        parent = stack.enter_context(TemporaryDirectory(prefix=PREFIX, dir=run))
        model_folder = Path(parent) / adapter.name
        save_merged_model(resolve_model(base), adapter, model_folder, model)
    except OSError as error:
        raise UserError(
            f"adapter {folder} cannot be merged into {base} in {run} ({error.strerror or error}): copy the run to a "
            "writable folder with enough space"
        ) from None
    return str(model_folder)


def _with_models(config: Config, merged: Mapping[str, str]) -> Config:
    agents = (replace(agent, name=merged.get(agent.name, agent.name)) for agent in config.agents)
    return replace(config, agents=tuple(agents))
