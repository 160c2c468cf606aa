"""Adapters that are evaluated: engines load whole models, so each is merged into its base model for as long as that.

The merged models are in a hidden folder of the run that an adapter is of, which the engines' nodes see as they see the
run's other models, and are deleted at the end.
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
    """It is whole, and can be merged here. Raises UserError."""
    if not peft_installed():
        raise UserError(f"{folder} is an adapter, and peft is not installed: pip install 'marl-ray[lora]'")
    try:
        check_folder(Path(folder), own_tokenizer=True)
    except UserError as error:
        raise UserError(f"adapter {folder} cannot be loaded: {error}") from None


@contextmanager
def merged(asked: EvaluationPlan) -> Iterator[EvaluationPlan]:
    """The same, with whole models in the adapters' places as long as this lasts. Raises UserError."""
    with ExitStack() as stack:
        places = {folder: _merge(folder, base, asked.config.model, stack) for folder, base in asked.adapters.items()}
        playing = [replace(contender, config=_placed(contender.config, places)) for contender in asked.evaluated_models]
        yield replace(asked, evaluated_models=playing)


def _merge(folder: str, base: str, model: ModelConfig, stack: ExitStack) -> str:
    """The folder of the merged model, which `stack` deletes. It has the name of the adapter's: names say how to
    prompt."""
    from marl_ray.learning.merging import save_merged_model  # torch

    logger.info(f"merging adapter {folder} into {base}")
    adapter = Path(folder)
    run = next(above for above in adapter.parents if RunFolder(above).config.exists())
    try:
        place = stack.enter_context(TemporaryDirectory(prefix=PREFIX, dir=run))
        whole = Path(place) / adapter.name
        save_merged_model(resolve_model(base), adapter, whole, model)
    except OSError as error:
        raise UserError(
            f"adapter {folder} cannot be merged into {base} below {run} ({error.strerror or error}): copy the run to "
            "where there is room and you may write"
        ) from None
    return str(whole)


def _placed(config: Config, places: Mapping[str, str]) -> Config:
    agents = (replace(agent, name=places.get(agent.name, agent.name)) for agent in config.agents)
    return replace(config, agents=tuple(agents))
