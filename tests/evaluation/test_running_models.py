"""One model with its actors, for commands that play with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from marl_ray.config import from_tree
from marl_ray.core.stop_signals import StopSignals
from marl_ray.evaluation import running_models
from marl_ray.evaluation.running_models import RunningModel, prepare_model, run_with_model

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "toy_relay.yaml"


class NoActors:
    """Actors that are never started."""

    sandbox = None

    def __init__(self, *_: Any) -> None:
        pass

    async def start(self) -> None:
        pass

    async def start_generators(self, models: list[Any]) -> list[Any]:
        return models

    async def close(self) -> None:
        pass


@contextmanager
def no_cluster(verbose: bool) -> Iterator[StopSignals]:
    with StopSignals() as signals:
        yield signals


def test_a_model_plays_in_the_environment_that_was_checked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(running_models, "EvaluationActors", NoActors)
    monkeypatch.setattr(running_models, "on_cluster", no_cluster)
    config = from_tree(yaml.safe_load(CONFIG.read_text(encoding="utf-8")), "magrpo")

    async def work(running: RunningModel) -> RunningModel:
        return running

    with caplog.at_level(logging.INFO):
        prepared = prepare_model("base", config)
        running = run_with_model(prepared, work)
    assert running.environment is prepared.environment
    assert caplog.text.count("gateway.credit calls") == 1
